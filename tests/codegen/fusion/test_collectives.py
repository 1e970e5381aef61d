"""Fused collectives as kernels, on fibers in random orders, bit for bit as the interpreter says."""

# ruff: noqa: F403, F405, F841 (programs are written as programs are)
from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.codegen.collective.algorithms import random_algorithm
from tests.codegen.fusion.sessions import compare, fill, integers, optimizer_scalars, session, wrong
from tests.planner.passes.fusion.by_hand import adam, pipeline, sgd
from treadle.codegen.collective.lower import lower as lowered_program
from treadle.codegen.fusion.algorithms import ProgramFactory, named, planned
from treadle.codegen.fusion.lower import headers, lower
from treadle.codegen.fusion.scattered import addresses, header, index_of
from treadle.fusion import *
from treadle.planner.passes.fusion.buckets import bucket_table
from treadle.planner.passes.fusion.counts import counts
from treadle.planner.passes.fusion.evaluate import evaluate, held
from treadle.planner.passes.fusion.layouts import RingTile
from treadle.planner.passes.fusion.program import Bindings, Program
from treadle.planner.passes.fusion.refusal import TypeRefusal
from treadle.runtime.native_build import Target

N, T, H = dims("N", "T", "H")


def tiles(map: RingTile) -> Program:
    """A step in mixed precision, with state in the tiles of a ring."""
    g = Tensor("g", f16, [N], Local)
    p = Tensor("p", bf16, [N], Replicated)
    m = Tensor("m", f32, [N], Sliced(map=map))
    lr = Scalars("lr", f32)
    rs = ReduceScatter("+", g, map=map)
    m_ = Update(m, m + Cast(f32, rs))
    p_ = Update(p, Slice(p, map=map) - Cast(bf16, lr * m_))
    ag = AllGather(p_)
    far = fuse("AllReduceFuse", rs, m_, p_, ag)
    return Execute("tiles", [g, p, m, lr], [ag])


def rooted() -> Program:
    """Both collectives with a root, each with a computation."""
    g = Tensor("g", f32, [N], Local)
    p = Tensor("p", f32, [N], Replicated)
    largest = Reduce("max", g, 1)
    x = largest + Load(p, 1)
    fused = fuse("ReduceFuse", largest, x)
    y = x - Load(p, 1)
    whole = Broadcast(y, 1)
    far = fuse("BroadcastFuse", y, whole)
    return Execute("rooted", [g, p], [whole])


def experts() -> Program:
    x = Tensor("x", f16, [T, H], Local)
    order = Tensor("order", i32, [T], Local)
    gate = Tensor("gate", f16, [T, 1], Local)
    rows = Permute(x, order)
    weighted = rows * gate
    out = AllToAll(weighted)
    fused = fuse("AllToAllFuse", rows, weighted, out)
    return Execute("experts", [x, order, gate], [out])


def norms() -> Program:
    """What of LAMB needs phases: a step as long as its tensor, for each of several tensors."""
    g = Tensor("g", f32, [N], Local)
    p = Tensor("p", f32, [N], Replicated)
    m = Tensor("m", f32, [N], Sliced())
    rs = ReduceScatter("+", g)
    m_ = Update(m, m + rs)
    before = Slice(p)
    was = Norm(before, per="tensor")
    step = Norm(m_, per="tensor")
    p_ = Update(p, before - was / step * m_)
    ag = AllGather(p_)
    far = fuse("AllReduceFuse", rs, m_, was, step, p_, ag)
    return Execute("norms", [g, p, m], [ag])


def rows() -> Program:
    """RMSNorm between the halves of an AllReduce: slices are whole rows."""
    y = Tensor("y", f32, [T, H], Local)
    rs = ReduceScatter("+", y, dim=0)
    square = ReduceTensor("+", rs * rs, dim=1)
    out = rs * square
    ag = AllGather(out)
    far = fuse("AllReduceFuse", rs, square, out, ag)
    return Execute("rows", [y], [ag])


PLANNED = planned(lowered_program(random_algorithm("allreduce", 4, 2, 1, 3)))

CASES: dict[str, tuple[Program, Bindings, str | ProgramFactory, str, int]] = {
    "adam, ring": (adam("fused"), Bindings({"N": 37}, 3), "ring", "Simple", 2),
    "adam, a plan": (
        adam("fused"),
        Bindings({"N": 29}, 4),
        PLANNED,
        "Simple",
        1,
    ),
    "ring tiles": (tiles(RingTile(2, 4, 2, True)), Bindings({"N": 59}, 3), "ring", "LL", 1),
    "roots, trees": (rooted(), Bindings({"N": 21}, 5), "double-tree", "Simple", 1),
    "one-sided": (sgd("fused rs"), Bindings({"N": 13}, 5), "all-pairs", "Simple", 1),
    "three groups": (pipeline("rs cp ag"), Bindings({"B": 1, "S": 3, "H": 3}, 2, 3), "ring", "LL", 2),
    "experts": (experts(), Bindings({"T": 6, "H": 5}, 3), "ring", "Simple", 1),
    "rows": (rows(), Bindings({"T": 7, "H": 6}, 3), "ring", "Simple", 1),
}


@pytest.mark.parametrize("name", CASES)
def test_fused_collectives(name: str) -> None:
    program, bindings, algorithm, protocol, channels = CASES[name]
    given = optimizer_scalars(integers(program, bindings))
    if "order" in given:
        given["order"] = np.stack([np.random.default_rng(rank).permutation(6) for rank in range(3)])[None]
    lowered = lower(
        program, bindings, algorithm=algorithm, protocol=protocol, channels=channels, slot_bytes=32  # type: ignore[arg-type]
    )  # fmt: skip
    assert compare(lowered, given, orders=range(150), seed=7, step=2) == []


def wires() -> Program:
    """Elements of each size separately, and of different sizes in and out; none of the extents divides."""
    dtypes = (f16, f32, f64)
    inputs = [Tensor(f"x_{dtype}", dtype, [N], Local) for dtype in dtypes]
    sums = [AllReduce("+", x) for x in inputs]
    rs = ReduceScatter("max", inputs[0])
    wide = Cast(f64, rs) + 1.0
    ag = AllGather(wide)
    widening = fuse("AllReduceFuse", rs, wide, ag)
    rs_ = ReduceScatter("+", inputs[1])
    narrow = Cast(f16, rs_)
    ag_ = AllGather(narrow)
    narrowing = fuse("AllReduceFuse", rs_, narrow, ag_)
    return Execute("wires", inputs, [*sums, ag, ag_])


LINES: dict[Target, tuple[Program, Bindings, str | ProgramFactory, int, int]] = {
    "process": (tiles(RingTile(2, 64, 2, True)), Bindings({"N": 999}, 3), "ring", 1, 1024),
    "fibers": (wires(), Bindings({"N": 1003}, 4), named("two-level", 2), 2, 600),
}


@pytest.mark.parametrize("target", LINES)
def test_collectives_in_lines(target: Target) -> None:
    """Lines of eight threads on fibers, of one thread on processes."""
    program, bindings, algorithm, channels, slot_bytes = LINES[target]
    given = optimizer_scalars(integers(program, bindings))
    lowered = lower(
        program, bindings, algorithm=algorithm, protocol="LL128", channels=channels, slot_bytes=slot_bytes
    )  # fmt: skip
    values = evaluate(program, bindings, given)
    with session(lowered, ("-O1",), target=target) as live:
        for order in range(40):
            fill(live, values)
            assert live.run(order=order) == []
            assert wrong(live, values) == []


@pytest.mark.parametrize(("extent", "ranks"), [(0, 3), (1, 8)])
def test_tensors_smaller_than_their_group(extent: int, ranks: int) -> None:
    program, bindings = sgd("fused"), Bindings({"N": extent}, ranks)
    assert compare(lower(program, bindings), integers(program, bindings)) == []


def test_norms_of_tensors_over_all_ranks() -> None:
    """Totals of squares are exact; roots and quotients of them are as close as the interpreter's."""
    program, bindings = norms(), Bindings({"N": 30}, 3, 1, {"N": (4, 9, 1, 16)})
    given = integers(program, bindings)
    values = evaluate(program, bindings, given)
    lowered = lower(program, bindings, protocol="LL", slot_bytes=32)
    with session(lowered) as live:
        for order in range(150):
            fill(live, values)
            assert live.run(order=order) == []
            found = [tensors[lowered.places["ag"]] for tensors in live.tensors]
            assert all((each == found[0]).all() for each in found)
            np.testing.assert_allclose(found[0], held(program.by_name["ag"].type, bindings, values["ag"], 0), rtol=1e-6)
        assert live.unharmed()


def test_traffic_and_volume_are_those_of_the_table() -> None:
    """Adam `fused` (benchmarks/fusion/tables.py), slices of 13, 13 and 11: tensors 2N + 5N/n, links 2 (N - N/n)."""
    program, bindings = CASES["adam, ring"][:2]
    with session(lower(program, bindings, channels=2, slot_bytes=32)) as live:
        fill(live, evaluate(program, bindings, optimizer_scalars(integers(program, bindings))))
        assert live.run() == []
        own = (13, 13, 11)
        for rank in range(3):
            found = live.counts(rank)
            assert found.loaded + found.stored == 2 * 37 + 5 * own[rank]
            assert (found.sent, found.sent_on) == (2 * 37 - own[rank] - own[(rank + 1) % 3], 0)


# Refusals.


@pytest.mark.parametrize(
    ("program", "algorithm", "message"),
    [
        (adam("fused"), "binomial", "found m in slices, expected tensors that every rank has whole"),
        (sgd("fused"), "recursive-doubling", "found chunk 0 finished at ranks 0, 1, 2, 3, expected one rank"),
    ],
)
def test_algorithms_that_do_not_finish_where_the_computation_runs(
    program: Program, algorithm: str, message: str
) -> None:
    with pytest.raises(TypeRefusal, match=message) as error:
        lower(program, Bindings({"N": 16}, 4), algorithm=algorithm)
    assert error.value.row == "5.3"


def test_trees_carry_computations_on_whole_tensors() -> None:
    assert lower(sgd("fused"), Bindings({"N": 16}, 4), algorithm="binomial").launches


def columns(dtype: str, *, whole: bool = False) -> Program:
    """Slices along the middle of three dimensions: state, a slice of what is whole, something that is broadcast, and,
    with `whole`, a norm of all of it between the halves of the AllReduce."""
    y = Tensor("y", f16, [N, T, H], Local)
    r = Tensor("r", dtype, [N, T, H], Replicated)
    b = Tensor("b", dtype, [H], Replicated)
    m = Tensor("m", dtype, [N, T, H], Sliced(1))
    rs = ReduceScatter("+", y, dim=1)
    m_ = Update(m, m + Cast(dtype, rs))
    out = m_ * Slice(r, 1) + b
    if whole:
        total = ReduceTensor("+", m_)
        out = out * total
        ag = AllGather(out)
        far = fuse("AllReduceFuse", rs, m_, total, out, ag)
        return Execute("columns", [y, r, b, m], [ag])
    ag = AllGather(out)
    far = fuse("AllReduceFuse", rs, m_, out, ag)
    return Execute("columns", [y, r, b, m], [ag])


@pytest.mark.parametrize(
    ("extents", "ranks", "algorithm", "protocol", "channels", "dtype", "whole"),
    [
        ((3, 7, 5), 3, "ring", "Simple", 2, f32, False),  # the last rank has fewer, and no pack is whole
        ((2, 8, 8), 4, "all-pairs", "LL", 1, f16, False),
        ((5, 5, 16), 4, "ring", "LL128", 1, f32, True),  # one rank has nothing
        ((3, 8, 4), 4, "two-level", "LL", 1, f64, True),
        ((40, 4, 24), 2, "ring", "Simple", 3, f32, True),
    ],
)
def test_slices_of_columns(
    extents: tuple[int, int, int],
    ranks: int,
    algorithm: str,
    protocol: str,
    channels: int,
    dtype: str,
    whole: bool,
) -> None:
    bindings = Bindings(dict(zip("NTH", extents, strict=True)), ranks)
    program = columns(dtype, whole=whole)
    chosen = named("two-level", 2) if algorithm == "two-level" else algorithm
    lowered = lower(
        program, bindings, algorithm=chosen, protocol=protocol, channels=channels, slot_bytes=64  # type: ignore[arg-type]
    )  # fmt: skip
    assert compare(lowered, integers(program, bindings), orders=range(8)) == []


# Signals that are lost, and waits that are too short, must be found.

MUTATIONS = {
    1: ("if (!Slots::FLAGGED) signal_system(", "if (!Slots::FLAGGED && treadle_mutation != 1) signal_system("),
    2: ("if (move.flow & RECEIVE) signal_system(", "if (move.flow & RECEIVE && treadle_mutation != 2) signal_system("),
    3: ("if (move.awaited) signal_rank(", "if (move.awaited && treadle_mutation != 3) signal_rank("),
    4: (
        "lane.own->filled.value, lane.received + 1,",
        "lane.own->filled.value, lane.received + (treadle_mutation != 4),",
    ),
    5: ("lane.sent + 1 - C::SLOTS,", "lane.sent + 1 - C::SLOTS - (treadle_mutation == 5),"),
    6: (
        "lane.rounds * C::STRIDE + move.wait_move + 1,",
        "lane.rounds * C::STRIDE + move.wait_move + (treadle_mutation != 6),",
    ),
}


@pytest.mark.parametrize(
    ("mutation", "awaited"),
    [(0, ""), (4, ""), (5, ""), (6, ""), (1, "a message"), (2, "room"), (3, "a step")],
)
def test_lost_signals_and_short_waits_are_found(mutation: int, awaited: str) -> None:
    """Without one the values are right in every order; a lost signal is reported, a short wait shows in some order."""
    lowered = lower(sgd("fused"), Bindings({"N": 60}, 3), algorithm="all-pairs", slot_bytes=16)
    values = evaluate(lowered.program, lowered.bindings, integers(lowered.program, lowered.bindings))
    text = headers()["treadle_collective.h"]
    for before, after in MUTATIONS.values():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    exported = 'extern "C" __attribute__((visibility("default"))) int treadle_mutation = 0;\nnamespace treadle {'
    text = text.replace("namespace treadle {", exported, 1)
    with session(lowered, changed={"treadle_collective.h": text}) as live:
        ctypes.c_int.in_dll(live.native.library, "treadle_mutation").value = mutation
        stuck: list[str] = []
        harmed = False
        for order in range(60):
            fill(live, values)
            stuck = live.run(order=order)
            harmed = not stuck and bool(wrong(live, values))
            if stuck or harmed:
                break
        if not mutation:  # a chunk that goes to several ranks is read again, but is traffic once
            traffic = counts(lowered.program).traffic.value(lowered.bindings)
            found = [live.counts(rank) for rank in range(3)]
            assert [each.loaded + each.stored for each in found] == [60 * traffic] * 3
    assert bool(stuck) == bool(awaited)
    assert not stuck or any(f"far block 0: waits for {awaited}" in each for each in stuck)
    assert harmed == (mutation in (4, 5, 6))


def test_gradients_and_weights_in_many_tensors() -> None:
    """Fused over buckets of tensors that were allocated apart, of which some lie across two ranks' slices."""
    sizes = (1500, 1024, 10)
    program, bindings = adam("fused"), Bindings({"N": sum(sizes)}, 3)
    values = evaluate(program, bindings, optimizer_scalars(integers(program, bindings)))
    lowered = lower(program, bindings, scattered=("g", "p"), protocol="LL", slot_bytes=1024)
    index = index_of(bucket_table(sizes))
    kept: list[object] = [index]
    with session(lowered) as live:
        apart: dict[tuple[str, int], list[np.ndarray]] = {}
        for rank in range(3):
            for name in ("g", "p"):
                parts = [np.zeros(size, np.float32) for size in sizes]
                places, offsets = addresses(index, [part.ctypes.data for part in parts])
                arrays = (index.start, index.page, places, offsets)
                table = header(index, *(array.ctypes.data for array in arrays))
                kept += [*arrays, table]
                apart[name, rank] = parts
                live.memory[rank][lowered.places[name]] = table.view(np.uint8)
        live.bind([[raw.ctypes.data for raw in rows] for rows in live.memory])
        for order in range(2):
            fill(live, values)
            for (name, rank), parts in apart.items():
                whole = held(program.by_name[name].type, bindings, values[name], rank).astype(np.float32)
                for part, piece in zip(parts, np.split(whole, np.cumsum(sizes)[:-1]), strict=True):
                    part[:] = piece
            assert live.run(order=order) == []
            for rank in range(3):
                found = np.concatenate(apart["p", rank])
                assert found.tobytes() == values["ag_p"][0, rank].astype(np.float32).tobytes()
