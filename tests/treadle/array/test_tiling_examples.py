"""The programs in examples/tiling: plain NumPy computes the same, and each result is what its method promises."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle.array as ta
from treadle.planner.errors import InputError

FOLDER = Path(__file__).parents[3] / "examples/tiling"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")
METHODS = {
    "products": ("mixed", "chained"),
    "kmeans": ("centred",),
    "als": ("factored",),
    "ssvd": ("decomposed",),
    "pagerank": ("ranked",),
    "linear_regression": ("fitted",),
    "logistic_regression": ("fitted",),
    "jacobi": ("solved",),
    "conjugate_gradient": ("solved",),
}
"""The functions that each program calls, which take arrays of any library."""
SMALL: dict[str, dict[str, int]] = {
    "products": {"size": 14, "width": 5},
    "kmeans": {"samples": 50, "features": 3, "iterations": 2},
    "als": {"users": 14, "items": 11, "rank": 3, "iterations": 1},
    "ssvd": {"rows": 26, "columns": 13, "rank": 3, "extra": 2, "iterations": 1},
    "pagerank": {"pages": 22, "iterations": 2},
    "linear_regression": {"samples": 50, "features": 5, "iterations": 2},
    "logistic_regression": {"samples": 50, "features": 5, "iterations": 2},
    "jacobi": {"size": 14, "iterations": 2},
    "conjugate_gradient": {"size": 14, "iterations": 2},
}


def module_of(name: str) -> Any:
    return importlib.import_module(f"examples.tiling.{name}")


def several(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def with_inputs(name: str, monkeypatch: pytest.MonkeyPatch, **sizes: Any) -> tuple[list[Any], list[np.ndarray]]:
    """What the program returns, and what plain NumPy makes of the same inputs."""
    module = module_of(name)
    plain: list[Any] = []

    def both(method: Callable[..., Any]) -> Callable[..., Any]:
        def apply(*args: Any) -> Any:
            with np.errstate(all="raise"):
                made = method(*(each.numpy() if isinstance(each, ta.Array) else each for each in args))
            assert all(isinstance(each, np.ndarray) for each in several(made))
            plain.extend(several(made))
            return method(*args)

        return apply

    for word in METHODS[name]:
        monkeypatch.setattr(module, word, both(getattr(module, word)))
    return list(several(module.program(**sizes))), plain


def test_every_program_is_known() -> None:
    assert set(NAMES) == set(METHODS) == set(SMALL)


@pytest.mark.parametrize("name", NAMES)
def test_plain_numpy_computes_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, plain = with_inputs(name, monkeypatch)
    assert all(isinstance(each, ta.Array) for each in made)
    for one, other in zip(made, plain, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("workers", [3, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES)
def test_planned_tiles_compute_the_same(name: str, workers: int) -> None:
    """With sizes that the workers do not divide. The whole program is one graph: nothing is evaluated before."""
    wanted = several(module_of(name).program(**SMALL[name]))
    ta.evaluate(*wanted)
    with ta.using(workers=workers):
        made = several(module_of(name).program(**SMALL[name]))
        ta.evaluate(*made)
    for one, other in zip(made, wanted, strict=True):
        # Singular vectors of the noise are nearly free to turn.
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-9, atol=1e-7 if name == "ssvd" else 1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_programs_are_captured_whole(name: str) -> None:
    """No value of theirs decides their course, so a plan holds for all data."""
    module = module_of(name)
    problem = ta.capture(module.program, name=name)
    assert len(problem.outputs) == len(several(module.program()))
    assert all(node.operator != "value" or "data" in node.params for node in problem.nodes)
    assert not any(array.masked for array in problem.arrays)


def test_regression_finds_the_weights() -> None:
    made = module_of("linear_regression").program(iterations=40)
    np.testing.assert_allclose(made, ta.normal(16, seed=2), atol=0.02)


def test_logistic_regression_separates_the_classes() -> None:
    made = module_of("logistic_regression").program(iterations=60).numpy()
    hidden = ta.normal(16, seed=2).numpy()
    assert made @ hidden / np.linalg.norm(made) / np.linalg.norm(hidden) > 0.99


def test_centres_are_means_of_their_samples() -> None:
    x = (ta.normal((1000, 8), seed=1) + 4.0 * ta.integers(0, 2, (1000, 1), seed=2)).numpy()
    centres = module_of("kmeans").program(iterations=40).numpy()
    nearest = np.argmin(((x[:, None] - centres) ** 2).sum(-1), axis=1)
    np.testing.assert_allclose(centres, [x[nearest == each].mean(0) for each in range(4)])


def test_factors_reproduce_the_ratings() -> None:
    users, items = module_of("als").program(iterations=10)
    hidden = ta.uniform((300, 8), seed=1) @ ta.uniform((8, 200), seed=2)
    np.testing.assert_allclose(users @ items.T, hidden, atol=0.05)


def test_leading_singular_values() -> None:
    x = ta.normal((600, 6), seed=1) @ ta.normal((6, 80), seed=2) + ta.normal((600, 80), deviation=0.01, seed=3)
    vectors, values = module_of("ssvd").program()
    np.testing.assert_allclose(values[:6], np.linalg.svd(x.numpy(), compute_uv=False)[:6], rtol=1e-9)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(10), atol=1e-9)


def test_ranks_are_a_distribution_that_stays() -> None:
    made, next_one = (module_of("pagerank").program(iterations=count).numpy() for count in (100, 101))
    assert made.min() > 0
    np.testing.assert_allclose([made.sum()], [1])
    np.testing.assert_allclose(made, next_one, rtol=1e-12)


@pytest.mark.parametrize("name", ["jacobi", "conjugate_gradient"])
def test_systems_are_solved(name: str) -> None:
    made = module_of(name).program(iterations=60).numpy()
    if name == "jacobi":
        matrix = ta.uniform((300, 300), seed=1).numpy() + 600 * np.eye(300)
    else:
        half = ta.normal((300, 300), seed=1).numpy()
        matrix = half @ half.T / 300 + np.eye(300)
    np.testing.assert_allclose(matrix @ made, ta.normal(300, seed=2), atol=1e-9)


def test_a_program_that_its_data_decide_is_refused() -> None:
    def program() -> Any:
        x = ta.normal((9, 2), seed=1)
        return x[x[:, 0] > 0].reshape(-1)

    with pytest.raises(InputError, match="reshape needs the shape of the filter"):
        ta.capture(program)
