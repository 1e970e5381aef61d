"""Intervals hold every right result and little else; where a function jumps, they say that rounding decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.fusion.reachable import CASES
from benchmarks.fusion.schedules import program as shipped
from treadle.codegen.fusion.lower import lower
from treadle.planner.passes.fusion import language as cc
from treadle.planner.passes.fusion.arithmetic import FUNCTIONS
from treadle.planner.passes.fusion.evaluate import evaluate
from treadle.planner.passes.fusion.operations import FLOAT_UNARY
from treadle.planner.passes.fusion.program import Bindings, Program
from treadle.planner.passes.fusion.rounding import Intervals, _in_doubles, _range, intervals
from treadle.runtime.fusion.data import differences, example, place
from treadle.runtime.fusion.tensors import Tensors

Array = NDArray[Any]
RANKS = 3


def holds(of: Intervals, name: str, values: Array) -> bool:
    found = np.asarray(values, np.float64)
    inside = (of.low[name] <= found) & (found <= of.high[name])
    return bool((inside | np.isnan(of.low[name]) | np.isnan(found)).all())


@pytest.mark.parametrize("name", CASES)
def test_results_of_other_orders_and_without_rounding_lie_within(name: str) -> None:
    program, bindings = shipped(CASES[name].program), CASES[name].bindings(RANKS)
    given = example(program, bindings, "floats")
    values = evaluate(program, bindings, given)
    within = intervals(program, bindings, values)
    assert not within.undecided
    summed = {reader.inputs[0] for reader in program.nodes if reader.op in ("AllReduce", "ReduceScatter")}
    turned = {name: np.roll(each, 1, axis=1) if name in summed else each for name, each in given.items()}
    for others in (values, evaluate(program, bindings, turned), evaluate(_in_doubles(program), bindings, given)):
        for output in program.outputs:
            assert holds(within, output, others[output])


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Neg", "Abs", "ReLU", *FLOAT_UNARY])
def test_ranges_hold_what_functions_make_of_points_inside(op: str) -> None:
    random = np.random.default_rng(7)
    arity = 2 if op in ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min") else 1
    middles, radii = random.normal(0, 2, (arity, 400)), random.exponential(0.5, (arity, 400))
    if op == "Pow":
        middles[1], radii[1] = random.integers(-3, 4, 400), 0.0
    operands = [(m - r, m + r) for m, r in zip(middles, radii, strict=True)]
    with np.errstate(all="ignore"):
        low, high, jumps = _range(op, operands)
        for share in np.linspace(-1, 1, 9):
            points = [m + share * r * random.choice([-1, 1], 400) for m, r in zip(middles, radii, strict=True)]
            found = FUNCTIONS[op](*points)
            slack = 1e-6 + 1e-12 * np.abs(found)
            assert ((low - slack <= found) & (found <= high + slack) | jumps | np.isnan(found)).all()
    assert not jumps.all()


def lion() -> Program:
    """The sign of a mean of bf16 gradients decides on the step of an f32 weight."""
    n = cc.dims("N")
    g = cc.Tensor("g", cc.bf16, [n], cc.Local)
    m = cc.Tensor("m", cc.bf16, [n], cc.Replicated)
    p = cc.Tensor("p", cc.f32, [n], cc.Replicated)
    total = cc.AllReduce("+", g)
    c = m * 0.5 + total
    sign = cc.Where(c > 0, 1.0, cc.Where(c < 0, -1.0, 0.0))
    p_ = cc.Update(p, p - sign * 0.125)
    return cc.Execute("lion", [g, m, p], [p_])


def test_either_sign_is_right_where_rounding_decides_and_wrong_elsewhere() -> None:
    program, bindings = lion(), Bindings({"N": 5}, RANKS)
    gradients = [[1.0, 2.0, -1.0, 3.0, 0.0], [2.0**-9, 2.0, -1.0, 1.0, 0.0], [-1.0, 2.0, -1.0, 1.0, 0.0]]
    given = {"g": np.array([gradients]), "m": np.zeros(5), "p": np.full(5, 2.0)}
    values = evaluate(program, bindings, given)
    within = intervals(program, bindings, values)
    (above, below) = within.undecided
    assert (above.op, above.count, below.op, below.count) == ("Gt", 2, "Lt", 2)
    assert str(above) == "Gt in sign: 2 of 5 elements are within rounding of a jump"
    lowered = lower(program, bindings)
    tensors = Tensors(lowered.buffers, RANKS)
    place(tensors, range(RANKS), lowered, values)
    weights = tensors.array(0, lowered.places["p"])
    for rank in range(RANKS):
        tensors.array(rank, lowered.places["p"])[:] = values["p_"][0, rank]
    assert not list(differences(tensors, range(RANKS), lowered, values, within))
    weights[0] += 0.125
    assert not list(differences(tensors, range(RANKS), lowered, values, within)), "its gradient may be 0, or 2^-9"
    weights[1] += 0.25
    (line,) = differences(tensors, range(RANKS), lowered, values, within)
    assert "1 of 5 elements differ, first [1]: found 2.125, expected 1.875, or from 1.875 to 1.875" in line


def test_a_weight_of_a_finer_type_is_held_to_that_type() -> None:
    """Whatever coarser types there are elsewhere in the program."""
    n = cc.dims("N")
    g, h = cc.Tensor("g", cc.f32, [n], cc.Local), cc.Tensor("h", cc.f16, [n], cc.Local)
    program = cc.Execute("two", [g, h], [cc.AllReduce("+", g), cc.AllReduce("+", h)])
    bindings = Bindings({"N": 7}, RANKS)
    values = evaluate(program, bindings, example(program, bindings, "floats"))
    within = intervals(program, bindings, values)
    fine, coarse = program.outputs
    for name, share in ((fine, 1e-5), (coarse, 3e-2)):
        assert not holds(within, name, values[name] + share)
        assert holds(within, name, values[name] + share / 200)


def test_sizes_of_groups_are_exact() -> None:
    x = cc.Tensor("x", "f32", [4], cc.Replicated)
    sizes = {dtype: cc.group_size(cc.WORLD, dtype) for dtype in ("i32", "bf16", "f32")}
    program = cc.Execute("sizes", [x], [cc.Exp(x), *sizes.values()])
    bindings = Bindings({}, 3)
    values = evaluate(program, bindings, {"x": np.zeros(4)})
    found = intervals(program, bindings, values)
    for name in program.outputs[1:]:
        assert (found.low[name] == 3).all()
        assert (found.high[name] == 3).all()
