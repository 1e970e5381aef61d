"""Results do not depend on how many workers tiles are cut for, nor on the passes that rewrite the graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import treadle.array as ta
from tests.treadle.array.same_programs import BINARY, KEYS, REDUCED, SHAPED, UNARY, drawn, same
from tests.treadle.array.user_functions import counts, halved, longest, shifted

seeds = st.integers(0, 2**32 - 1).map(np.random.default_rng)
workers = st.sampled_from([1, 2, 3, 4, 6, (2, 2), (2, 3), (2, 2, 2)])
ALONG = {f"{name} along": (lambda x, name=name: REDUCED[name](x, axis=0)) for name in REDUCED}
PARTS = {name: (lambda x, key=key: x[key]) for name, key in KEYS.items() if name != "out of range"}
STEPS: dict[str, Any] = UNARY | SHAPED | REDUCED | ALONG | PARTS


def steps_on(x: Any, names: list[str]) -> Any:
    for name in names:
        if x.ndim and x.size < 500 and (x.size or name not in PARTS):
            x = STEPS[name](x)
    return x


@settings(max_examples=20, derandomize=True, deadline=None)
@given(seeds, workers, st.booleans(), st.lists(st.sampled_from(sorted(STEPS)), min_size=2, max_size=4))
def test_chains_on_tiles(rng: np.random.Generator, count: Any, fuse: bool, names: list[str]) -> None:
    shape = tuple(int(size) for size in rng.integers(0, 7, rng.integers(1, 4)))
    kind = str(rng.choice(["int64", "float64", "complex128", "bool"]))
    with ta.using(engine="tiles", workers=count, fuse_maps=fuse, fuse_folds=fuse, cache=not fuse):
        same(lambda x: steps_on(x, names), drawn(rng, shape, kind))


@pytest.mark.parametrize("name", ["add", "matmul", "maximum", "lt"])
@pytest.mark.parametrize("count", [2, 5])
def test_two_arrays_on_tiles(name: str, count: int) -> None:
    rng = np.random.default_rng(count)
    with ta.using(workers=count):
        for one, other in [((6, 4), (4,)), ((4,), (4, 3)), ((5, 4), (4, 4)), ((1, 4), (4, 1)), ((2, 3, 4), (4, 3))]:
            same(BINARY[name], drawn(rng, one, "float32"), drawn(rng, other, "int16"))


@pytest.mark.parametrize("combine", ["add", "maximum", "minimum"])
def test_functions_of_the_user_emit_results_with_places(combine: str) -> None:
    """Antidiagonals: row i is shifted by i, what meets is merged."""
    x = drawn(np.random.default_rng(2), (5, 4), "int64")
    whole = np.full((5, 8), {"add": 0, "maximum": np.iinfo(int).min, "minimum": np.iinfo(int).max}[combine])
    for row in range(5):
        whole[row, row : row + 4] = x[row]
    with ta.using(workers=3):
        found = ta.join_update(
            shifted, (x, ta.arange(5)), (0, 0), (8,), dtype=int, update="all", combine=combine, located=True
        )
        np.testing.assert_array_equal(found, getattr(np, combine).reduce(whole))


def test_functions_of_the_user_on_tiles() -> None:
    x, labels = drawn(np.random.default_rng(2), (7, 4), "float64"), np.array([0, 2, 1, 2, 2, 0, 2])
    with ta.using(workers=3):
        found = ta.fold_tiles(longest, ta.map_tiles(halved, x), 0, combine="maximum")
        np.testing.assert_array_equal(found, abs(x / 2).max(0))
        found = ta.join_update(counts, (labels,), (0,), (3,), dtype=int, update="all")
        np.testing.assert_array_equal(found, [2, 1, 4])


@pytest.mark.parametrize("method", ["greedy", "sweep", "row", "column", "worst"])
def test_the_plan_does_not_change_the_result(method: str) -> None:
    x, y = drawn(np.random.default_rng(0), (9, 5), "float64"), drawn(np.random.default_rng(1), (5, 5), "float64")

    def program(x: Any, y: Any) -> Any:
        for _ in range(2):
            x = x @ y - np.mean(x, axis=0)
        return np.sum(x[x[:, 0] > 0], axis=0)

    with ta.using(workers=3, method=method):
        same(program, x, y)
