"""Matrix products on fibers against the interpreter: every layout of the table, ragged edges, all types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.codegen.fusion.sessions import Session, fill, integers, session, wrong
from treadle.codegen.fusion.expression import Scope
from treadle.codegen.fusion.lower import lower
from treadle.codegen.fusion.matmul import product, tile_of
from treadle.planner.errors import InputError
from treadle.planner.machine.dtypes import Dtype
from treadle.planner.passes.fusion import language as cc
from treadle.planner.passes.fusion.evaluate import evaluate
from treadle.planner.passes.fusion.layouts import Layout, Local, Replicated, Sliced
from treadle.planner.passes.fusion.program import Bindings, Program

LAYOUTS: dict[str, tuple[Layout, Layout, Dtype]] = {
    "row10": (Sliced(2), Sliced(0), "f32"),
    "row11": (Replicated(), Replicated(), "f32"),
    "row12": (Sliced(1), Replicated(), "f32"),
    "row12_outermost": (Sliced(0), Replicated(), "f32"),
    "row13": (Replicated(), Sliced(1), "f32"),
    "row14": (Local(), Replicated(), "f16"),
    "row14_both": (Local(), Local(), "i32"),
    "partial_f16": (Sliced(2), Sliced(0), "f16"),
    "partial_bf16": (Sliced(2), Sliced(0), "bf16"),
    "partial_f64": (Sliced(2), Sliced(0), "f64"),
}
EXTENTS = {"B": 2, "M": 11, "K": 13, "N": 19}
RANKS = 3


def products(layouts: dict[str, tuple[Layout, Layout, Dtype]] = LAYOUTS) -> Program:
    """All of them in one program, which is compiled once."""
    b, m, k, n = cc.dims("B", "M", "K", "N")
    inputs, outputs = [], []
    for name, (left, right, dtype) in layouts.items():
        x = cc.Tensor(f"x_{name}", dtype, [b, m, k], left)
        w = cc.Tensor(f"w_{name}", dtype, [k, n], right)
        inputs += [x, w]
        outputs.append(cc.MatMul(x, w))
    return cc.Execute("products", inputs, outputs)


@pytest.fixture(scope="module")
def live() -> Iterator[Session]:
    with session(lower(products(), Bindings(EXTENTS, RANKS), tile=(8, 16))) as opened:
        yield opened


@pytest.mark.parametrize("order", range(3))
def test_products_of_whole_numbers_are_exact(live: Session, order: int) -> None:
    given = integers(live.lowered.program, live.lowered.bindings, order, most=3)
    values = evaluate(live.lowered.program, live.lowered.bindings, given)
    fill(live, values)
    assert live.run(order=order) == []
    assert wrong(live, values) == []


def test_operands_and_results_count_as_traffic_once(live: Session) -> None:
    before = [(counts.loaded, counts.stored) for counts in map(live.counts, range(RANKS))]
    fill(
        live,
        evaluate(live.lowered.program, live.lowered.bindings, integers(live.lowered.program, live.lowered.bindings)),
    )
    assert live.run() == []
    its = scope(EXTENTS)
    made = [product(its, node) for node in its.program.nodes]
    for rank, (loaded, stored) in enumerate(before):
        extents = [(each.rows[rank], each.depth[rank], each.columns[rank]) for each in made]
        extents = [each for each in extents if each[0]]
        assert live.counts(rank).loaded - loaded == sum(depth * (rows + columns) for rows, depth, columns in extents)
        assert live.counts(rank).stored - stored == sum(rows * columns for rows, _, columns in extents)


def test_products_of_floats(live: Session) -> None:
    """Sums of 16-bit floats are fp32."""
    program, random = live.lowered.program, np.random.default_rng(0)
    given = {name: random.standard_normal(np.shape(x)) for name, x in integers(program, live.lowered.bindings).items()}
    values = evaluate(program, live.lowered.bindings, given)
    fill(live, values)
    assert live.run() == []
    for name, tolerance in (("matmul_1", 1e-5), ("matmul_8", 1e-3)):
        for rank in range(RANKS):
            found = live.tensors[rank][live.lowered.places[name]].astype(np.float64)
            np.testing.assert_allclose(found, values[name][0, rank].reshape(-1), rtol=tolerance, atol=tolerance)


def scope(extents: dict[str, int]) -> Scope:
    lowered = lower(products(), Bindings(extents, RANKS))
    return Scope(lowered.program, lowered.bindings, lowered.buffers, lowered.places)


def test_extents_of_every_row() -> None:
    its = scope(EXTENTS)
    made = {name: product(its, node) for name, node in zip(LAYOUTS, its.program.nodes, strict=True)}
    assert made["row10"].depth == (5, 5, 3)
    assert made["row12"].rows == (2 * 4, 2 * 4, 2 * 3)
    assert made["row12_outermost"].rows == (11, 11, 0)
    assert made["row13"].columns == (7, 7, 5)
    assert made["row10"].rows == made["row11"].rows == (22, 22, 22)


def test_a_right_operand_of_three_dimensions_is_refused() -> None:
    its = scope(EXTENTS)
    node = its.program.nodes[1]
    with pytest.raises(InputError, match="right operand"):
        product(its, replace(node, inputs=node.inputs[::-1]))


def test_tiles_fit_the_result_and_leave_work_for_all() -> None:
    assert tile_of(8192, 3072, "f16") == (128, 128)
    assert tile_of(1024, 512, "f32") == (64, 128)
    assert tile_of(5, 3, "f16") == (8, 8)
    assert tile_of(16, 4096, "f16") == (16, 64)
