"""Stages that run at the same time, on fibers: the same values in every order, tile by tile; and mutations are found.

Fibers try every order of threads, blocks and ranks, but nothing runs at the same time: a missing fence is not seen
here, only on GPUs and, in part, where ranks are processes.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from statistics import median

import numpy as np
import pytest

from benchmarks.fusion.ptxas import resources
from tests.codegen.fusion.overlaps import CASES, Overlapped, tail
from tests.codegen.fusion.sessions import Session, fill, integers, session, wrong
from tests.planner.passes.fusion.test_gemm_tiles import chunk_grid
from treadle.codegen.fusion.algorithms import named
from treadle.codegen.fusion.chunking import Chunking
from treadle.codegen.fusion.links import UnitLink, met, steps_of_inputs, steps_of_outputs
from treadle.codegen.fusion.lower import lower
from treadle.codegen.fusion.typed import typed_program
from treadle.planner.passes.fusion import language as cc
from treadle.planner.passes.fusion.evaluate import evaluate
from treadle.planner.passes.fusion.gemm_tiles import flat_chunk
from treadle.planner.passes.fusion.program import Bindings
from treadle.runtime.fusion.session import AWAITED

ORDERS = range(6)
COMPARED = [
    "tail, rectangles",
    "tail, ring tiles, LL",
    "AG, matmul and RS",
    "AG of columns and matmul",
    "matmul, RS and AG of columns",
]


@pytest.mark.parametrize("name", COMPARED)
def test_overlapped_stages_give_the_values_of_the_interpreter(name: str) -> None:
    case = CASES[name]
    lowered = case.lowered()
    assert not lowered.fallbacks
    assert any(len(launch) > 1 for launch in lowered.launches)
    with session(lowered) as live:
        for step, order in enumerate(ORDERS):  # several runs of one session: counters are never cleared
            given = integers(lowered.program, lowered.bindings, step)
            values = evaluate(lowered.program, lowered.bindings, given, seed=9, step=step)
            fill(live, values)
            assert live.run(order=order, seed=9, step=step) == []
            assert wrong(live, values) == []


def test_every_shared_case_is_overlapped() -> None:
    for name, case in CASES.items():
        lowered = case.lowered()
        assert not lowered.fallbacks, name
        together = [kernel for launch in lowered.launches if len(launch) > 1 for kernel in launch]
        assert any(kernel.stream == "communication" for kernel in together), name


# Orders.


@pytest.mark.parametrize(("ranks", "channels"), [(2, 1), (4, 1), (5, 1), (3, 2)])
def test_chunks_are_consumed_in_the_order_of_the_ring(ranks: int, channels: int) -> None:
    typed = typed_program(
        named("ring")("allreduce", ranks, channels=channels, root=None, protocol="Simple"), computes=True
    )
    found = steps_of_inputs(typed, ranks)
    for rank in range(ranks):
        order = [(rank - 1 - step) % ranks for step in range(ranks)]
        assert found[rank] == tuple(tuple(owner * channels + channel for channel in range(channels)) for owner in order)


def test_orders_follow_the_executed_program_not_the_rank() -> None:
    """In a program of another topology the same chunks come in another order."""
    typed = typed_program(named("all-pairs")("allreduce", 4, channels=1, root=None, protocol="Simple"), computes=True)
    assert steps_of_inputs(typed, 4)[1] == ((0, 2, 3), (1,))
    gather = typed_program(named("ring")("allgather", 4, channels=1, root=None, protocol="Simple"), computes=False)
    assert steps_of_outputs(gather, 4)[1] == ((1,), (0,), (3,), (2,))


def numbers(table: str, text: str) -> list[int]:
    found = re.search(table + r"\[\] = \{([^}]*)", text)
    assert found is not None
    return [int(number) for number in found[1].split(",")]


def chunk_orders(text: str, case: Overlapped, tiles_of_chunk: dict[int, set[int]]) -> list[list[int]]:
    """By rank, the order in which chunks become complete when tiles are made as the generated table says."""
    first = numbers(r"Order_tables \{\nTREADLE_TABLE int32_t FIRST", text)
    units = numbers("int32_t UNITS", text)
    orders = []
    for rank in range(case.ranks):
        tiles = units[first[rank] : first[rank + 1]]
        done = {chunk: max(tiles.index(tile) for tile in made) for chunk, made in tiles_of_chunk.items()}
        orders.append(sorted(done, key=done.__getitem__))
    return orders


def ring_finish(produced: list[list[int]]) -> int:
    """Units until GEMM and allreduce have ended on a ring of rank r to r + 1: a chunk takes one unit to make and one
    to send, and sums take none. `produced` is by rank the order in which its GEMM makes chunks, by their first sender.
    """
    n = len(produced)
    made = [[order.index(chunk) + 1 for chunk in range(n)] for order in produced]
    sent, arrived = [0] * n, [0] * n
    for step in range(n - 1):
        sent = [max(made[rank][(rank - step) % n], sent[rank], arrived[rank - 1]) + 1 for rank in range(n)]
        arrived = sent
    sums = [max(made[rank][(rank + 1) % n], sent[rank], sent[rank - 1]) for rank in range(n)]
    arrived = sums
    for step in range(n - 1):
        sent = [max(sent[rank], arrived[rank - 1] if step else sums[rank]) + 1 for rank in range(n)]
        arrived = sent
    return max(*sent, *sums)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_tile_order_hides_the_ring_and_the_opposite_direction_would_not(ranks: int) -> None:
    """A wrong direction gives right values: only the model of time shows it (CoCoNet, section 3.6)."""
    extents = {"B": 1, "S": 8 * ranks, "H": 16}  # one tile for each chunk
    case = Overlapped(tail, ranks, extents=extents, options={"tile": (8, 16), "slot_bytes": 1 << 20})
    text = case.lowered().text
    orders = chunk_orders(text, case, {chunk: {chunk} for chunk in range(ranks)})
    # The chunk that rank c completes is sent first by rank c + 1.
    produced = [[(chunk + 1) % ranks for chunk in order] for order in orders]
    assert ring_finish(produced) == 2 * ranks - 1
    opposite = [[order[0], *reversed(order[1:])] for order in produced]
    assert ring_finish(opposite) == (3 * ranks - 3 if ranks > 2 else 3)


def test_links_count_what_meets() -> None:
    tiles = chunk_grid(10, 12, (4, 8))
    chunks = [flat_chunk(begin, min(begin + 50, 120), 12) for begin in range(0, 120, 50)]
    feeds = met(tiles, chunks)
    grid = np.arange(120).reshape(10, 12)
    for tile, fed in enumerate(feeds):
        row, column = tile // 2 * 4, tile % 2 * 8
        inside = grid[row : row + 4, column : column + 8]
        assert fed == tuple(sorted({int(x) // 50 for x in inside.flat}))
    link = UnitLink("a_to_b", 0, (feeds,), 3)
    assert link.need == (tuple(sum(chunk in fed for fed in feeds) for chunk in range(3)),)


def test_a_rectangle_needs_fewer_tiles_than_as_many_elements_in_a_row() -> None:
    """Chunks of two dimensions keep the tiles of a product free: the first one is there sooner (CoCoNet, 3.6)."""
    case = Overlapped(tail, 4, extents={"B": 1, "S": 64, "H": 128}, options={"tile": (16, 16), "slot_bytes": 1024})
    text = case.lowered().text
    assert "Rectangles<8192, 2048, 1, 2048, 16, 16, 128>" in text
    assert set(numbers("NEED", text)) == {1}
    flat = flat_chunk(0, 256, 128)
    assert sum(bool(fed) for fed in met(chunk_grid(64, 128, (16, 16)), [flat])) == 8


@pytest.mark.parametrize(
    ("rows", "pieces", "shape"), [(12, 1, (2, 8)), (10, 2, (3, 12)), (9, 3, (8, 40)), (3, 1, (2, 4))]
)
def test_pieces_cover_the_tensor_once(rows: int, pieces: int, shape: tuple[int, int]) -> None:
    ranks, pitch = 3, 20
    part = -(-rows // ranks) * pitch
    height = -(-part // pitch // pieces)
    columns = min(shape[1], pitch)
    of = Chunking(
        rows * pitch, pieces, part, height * pitch, min(shape[0], height) * columns, None, ranks, columns, pitch
    )
    seen = np.zeros(rows * pitch, int)
    for iteration in range(of.iterations):
        for chunk in range(ranks * pieces):
            piece = of.piece(iteration, chunk)
            assert piece.count <= of.longest
            for i in range(piece.count):
                at = i // piece.columns * pitch + i % piece.columns
                seen[piece.begin + at] += 1
                assert piece.local + at == piece.begin + at - chunk // pieces * part
    assert (seen == 1).all()


# Refusals.


def test_stages_that_cannot_follow_unit_by_unit_run_one_after_the_other() -> None:
    s, h = cc.dims("S", "H")
    x = cc.Tensor("x", cc.f32, [s, h], cc.Local)
    total = cc.AllReduce("+", x)
    out = total * 2.0
    ol = cc.overlap(total, out)  # noqa: F841
    program = cc.Execute("scaled", [x], [out])
    lowered = lower(program, Bindings({"S": 4, "H": 4}, 2))
    assert [len(launch) for launch in lowered.launches] == [1, 1]
    (fallback,) = lowered.fallbacks
    assert fallback.members == ("total", "out")
    assert "pointwise" in fallback.why


def test_a_chain_that_cannot_overlap_as_a_whole_overlaps_from_its_head_on() -> None:
    s, h = cc.dims("S", "H")
    x = cc.Tensor("x", cc.f32, [s, h], cc.Sliced(1))
    w = cc.Tensor("w", cc.f32, [h, h], cc.Sliced(0))
    y = cc.MatMul(x, w)
    total = cc.AllReduce("+", y)
    out = total * 2.0
    ol = cc.overlap(y, total, out)  # noqa: F841
    lowered = lower(cc.Execute("scaled", [x, w], [out]), Bindings({"S": 4, "H": 4}, 2))
    assert [[kernel.name for kernel in launch] for launch in lowered.launches] == [["y", "total"], ["out"]]
    assert [fallback.members for fallback in lowered.fallbacks] == [("y", "total", "out")]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_overlapped_kernels_spill_no_registers_on_gpus() -> None:
    """A product on tensor cores and a fused collective, each with all registers of a multiprocessor to itself."""
    case = Overlapped(lambda: tail(dtype="f16"), 4, extents={"B": 4, "S": 512, "H": 1024}, options={"tile": (128, 128)})
    found = resources(case.lowered().text, "sm_90")
    assert {each.kernel for each in found} == {"layer", "far"}
    assert all(each.spill_stores == each.spill_loads == 0 and each.registers <= 128 for each in found)


# Mutations and the moment when the collective begins: one compilation in which both sides of the link can be changed.

RIGHT, EARLY, NEVER_WAITS, TOO_FEW, TOO_MANY, NO_EPOCH = range(6)
PROBE = """
enum { RIGHT, EARLY, NEVER_WAITS, TOO_FEW, TOO_MANY, NO_EPOCH };
static int mutation = 0, made[RANKS], taken[RANKS];
struct Signalling {
    static void signal(const Task &task, int rank, int64_t unit) {
        ++made[rank];
        treadle::Done<layer_to_far>::signal(task, rank, unit);
    }
};
struct Awaiting {
    static bool wait(const Task &task, int rank, int64_t unit) {
        if (mutation == NEVER_WAITS) return true;
        const int wrong = mutation == TOO_MANY ? 1 : mutation == TOO_FEW ? -1 : 0;
        const uint64_t need = layer_to_far::need(rank % layer_to_far::RANKS, unit) + wrong;
        const uint64_t value = need * (mutation == NO_EPOCH ? 1 : epoch_of(task) + 1);
        const bool good = wait_rank(task, counters_of<layer_to_far>(task, rank) + unit, value, TILES, rank, unit);
        if (taken[rank] < 0) taken[rank] = made[rank];
        return good;
    }
};
template <class Product, class Order, class Ready, class Done>
void followed(const Task &task, Turns<Product> &shared, const Matrices<typename Product::Type> &of) {
    if (mutation != EARLY) return gemm<Product, Order, Ready, Done>(task, shared, of);
    const int rank = rank_of(task), place = rank % Order::RANKS;
    for (;;) {
        if (thread() == 0) shared.turn = take_turn<Order>(task, rank);
        barrier();
        if (shared.turn >= Order::count(place)) return;
        const int64_t tile = Order::unit(place, shared.turn);
        if (thread() == 0) Done::signal(task, rank, tile);  // before the tile is stored
        Product::make(shared.tile, of, tile);
        barrier();
    }
}
}  // namespace treadle
extern "C" __attribute__((visibility("default"))) void treadle_mutate(int to) {
    treadle::mutation = to;
    for (int rank = 0; rank < treadle::RANKS; ++rank) treadle::made[rank] = 0, treadle::taken[rank] = -1;
}
extern "C" __attribute__((visibility("default"))) int treadle_begun(int rank) { return treadle::taken[rank]; }
namespace treadle {
"""


@pytest.fixture(scope="module")
def probed() -> Iterator[Session]:
    with begun() as live:
        yield live


def begun() -> AbstractContextManager[Session]:
    """A session of the probed kernels, which are compiled once."""
    lowered = replace(CASES["tail of two"], options={"tile": (8, 8), "slot_bytes": 256}).lowered()
    head, rest = lowered.text.split("namespace layer_product {", 1)
    at = head.rindex("// layer:")
    rest = rest.replace("treadle::Done<layer_to_far>", "Signalling").replace("treadle::Ready<layer_to_far>", "Awaiting")
    rest = rest.replace("    gemm<Product, Order,", "    followed<Product, Order,")
    text = f"{head[:at]}{PROBE}{head[at:]}namespace layer_product {{{rest}"
    return session(lowered, changed={"schedule.cu": text})


def outcome(live: Session, mutation: int, order: int) -> tuple[list[str], list[str]]:
    """What was stuck and what was wrong."""
    live.native.library.treadle_mutate(mutation)
    given = integers(live.lowered.program, live.lowered.bindings, order)
    values = evaluate(live.lowered.program, live.lowered.bindings, given)
    fill(live, values)
    layer = live.lowered.places["layer"]
    for rank in live.tensors:
        rank[layer][:] = 1000  # what an earlier run left there is no help
    stuck = live.run(order=order)
    return stuck, [] if stuck else wrong(live, values)


def test_collective_begins_while_tiles_are_being_made(probed: Session) -> None:
    """A run that waited for all tiles before the first chunk leaves would begin at the last one."""
    (product, _) = probed.lowered.launches[0]
    tiles = -(-22 // 8) * -(-27 // 8)
    begun = []
    for order in range(20):
        assert outcome(probed, RIGHT, order) == ([], [])
        begun += [probed.native.library.treadle_begun(rank) for rank in range(2)]
    need = min(numbers("NEED", product.text))
    assert min(begun) >= need
    assert min(begun) <= need + 2
    assert median(begun) < tiles / 2


@pytest.mark.parametrize("mutation", [EARLY, NEVER_WAITS, TOO_FEW, NO_EPOCH])
def test_mutations_that_read_too_early_give_wrong_values(probed: Session, mutation: int) -> None:
    assert any(outcome(probed, mutation, order)[1] for order in range(8))


def test_a_count_that_is_too_high_is_reported_with_chunk_and_counter() -> None:
    with begun() as live:  # its own, for a session that gave up must not be used afterwards
        stuck, _ = outcome(live, TOO_MANY, 0)
        assert stuck
        assert all("far" in line or "layer" in line for line in stuck)
        (_, far), *_ = live.lowered.launches
        need = numbers("NEED", live.lowered.launches[0][0].text)
        waiting = [row for row in live.native.stuck() if AWAITED[row.awaited] == "tiles"]
        assert {live.native.kernel(row.kernel) for row in waiting} == {far.name}
        assert {row.expected - need[row.index] for row in waiting} == {1}
        assert all(row.found == need[row.index] for row in waiting)
