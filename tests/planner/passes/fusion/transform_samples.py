"""Small programs, data on which they are exact, and the question whether two schedules mean the same."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from treadle.planner.passes.fusion import language as lang
from treadle.planner.passes.fusion.evaluate import evaluate, states
from treadle.planner.passes.fusion.program import Bindings, Program
from treadle.planner.passes.fusion.refusal import InvalidTransform

NAMES = ("sgd", "adam_f32", "adam", "lamb", "attention", "mlp", "pipeline", "rmsnorm", "moe", "ag_matmul", "matmul_rs")


def example(name: str) -> Program:
    program: Program = importlib.import_module(f"examples.fusion.{name}").program
    return program


def drawn(chance: random.Random) -> Program:
    """Sums over the ranks, and after them any computation on whole numbers that commutes with slicing, or does not."""
    T, H = lang.dims("T", "H")
    y, z = (lang.Tensor(name, "f32", [T, H], lang.Local) for name in "yz")
    r, s, q = (lang.Tensor(name, "f32", [T, H], lang.Replicated) for name in "rsq")
    b, c = lang.Tensor("b", "f32", [H], lang.Replicated), lang.Tensor("c", "f32", [T, 1], lang.Replicated)
    w, index = lang.Tensor("w", "f32", [H, H], lang.Replicated), lang.Tensor("index", "i32", [T], lang.Replicated)
    small, whole = [r, b, c], [lang.AllReduce("+", y), lang.AllReduce("max", z)]
    named: dict[str, object] = {"sum_": whole[0], "most": whole[1]}
    states = [s, q]
    for number in range(chance.randint(2, 7)):
        x, other = chance.choice(whole), chance.choice([*whole, *small, 2])
        match chance.randrange(12):
            case 0 | 1 | 2:
                made = x + other
            case 3:
                made = lang.ReLU(x) - other
            case 4:
                made = x * chance.choice(small)
            case 5:
                made = lang.Where(x < other, x, other)
            case 6:
                made = lang.Dropout(x, 0.5, f"key{number}")
            case 7:
                made = x - lang.ReduceTensor(chance.choice(["+", "max"]), x, dim=chance.choice([None, 0, 1]))
            case 8 if number < 3:
                made = lang.MatMul(x, w)
            case 9 if states:
                state = states.pop()
                made = lang.Update(state, state + x)
            case 10:
                made = lang.Permute(x, index)
            case _:
                made = lang.Max(x, other) + chance.choice(whole)
        named[f"v{number}"] = made
        whole.append(made)
    outputs = chance.sample(whole[2:], min(len(whole) - 2, chance.randint(1, 2)))
    return lang.Execute("drawn", [y, z, r, s, q, b, c, w, index], outputs, scope=named)


def bindings(name: str, ranks: int) -> Bindings:
    """Extents that ranks of 2, 3, 4, 5 and 8 do not divide; rows that are exchanged must be divided."""
    extents = {"N": 19, "B": 1, "S": 5, "H": 3, "T": 2 * ranks if name == "moe" else 7, "F": 6}
    parts = {"N": (11, 1, 7)} if name == "lamb" else {}
    return Bindings(extents, ranks, 2 if name == "pipeline" else 1, parts)


def values(program: Program, of: Bindings, seed: int = 0) -> dict[str, np.ndarray | float]:
    """Whole numbers for all inputs. Gradients of the ranks sum up to a multiple of their number, for exact means."""
    rng = np.random.default_rng(seed)
    made: dict[str, np.ndarray | float] = {
        "lr": 2.0,
        "b1": 0.0,
        "b2": 0.0,
        "t": 1.0,
        "eps": 0.0,
        "decay": 1.0,
        "share": 1,
    }
    for value in program.inputs:
        shape = tuple(extent.value(of.values) for extent in value.type.shape)
        if value.name == "order":
            made["order"] = np.stack([rng.permutation(shape[0]) for _ in range(of.ranks)])[None]
        elif value.name == "index":
            made["index"] = rng.permutation(shape[0])
        elif value.name == "g":
            mean = rng.choice([-3, -2, -1, 1, 2, 3], shape)
            apart = rng.integers(-3, 4, (of.ranks - 1, *shape))
            made["g"] = np.concatenate([mean + apart, (mean - apart.sum(0))[None]])[None]
        elif shape:
            ranks = (of.groups, of.ranks) if type(value.type.layout).__name__ == "Local" else ()
            made[value.name] = rng.integers(-3, 4, (*ranks, *shape)) if value.name != "v" else np.ones(shape)
    return {value.name: made[value.name] for value in program.inputs}


def assert_same(before: Program, after: Program, of: Bindings, given: Mapping[str, np.ndarray | float]) -> None:
    """The same outputs and the same states, bit by bit, on all that any rank has of them."""
    old, new = evaluate(before, of, given, seed=3), evaluate(after, of, given, seed=3)
    pairs = [(old[x], new[y], x) for x, y in zip(before.outputs, after.outputs, strict=True)]
    left, right = states(before, old), states(after, new)
    assert set(left) == set(right)
    pairs += [(left[name], right[name], name) for name in left]
    for x, y, name in pairs:
        there = ~np.isnan(y.astype(np.float64))
        assert there.any(), name
        assert x.dtype == y.dtype, name
        assert (x[there] == y[there]).all(), (name, x, y)


def refused(code: str, witness: str, call: Callable[[], object]) -> str:
    """That a transformation refuses, for this reason and on this witness; its message."""
    with pytest.raises(InvalidTransform) as caught:
        call()
    assert (caught.value.code, caught.value.witness) == (code, witness), str(caught.value)
    return str(caught.value)
