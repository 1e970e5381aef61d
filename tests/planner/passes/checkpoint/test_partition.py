"""Pieces in idle spans: the printed example, what is true of all partitions, and what an iteration makes of them."""

from __future__ import annotations

from itertools import groupby
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from treadle.planner.errors import InfeasibleError, InputError
from treadle.planner.passes.checkpoint.events import ENGINE, LINK, RESOURCES, tasks_of
from treadle.planner.passes.checkpoint.own import own_late_ns, own_pieces
from treadle.planner.passes.checkpoint.partition import partition, piece_cost, pieces_late_ns
from treadle.planner.passes.checkpoint.problem import VERSION, CheckpointProblem, IdleSpan, TrainingMessage, Variant
from treadle.planner.timeline.simulator import simulate

S = 10**9


def problem(lengths: tuple[int, ...], **changes: Any) -> CheckpointProblem:
    """Spans in seconds, one byte per second, a latency of one second, two buffers of 3 bytes."""
    spans = tuple(IdleSpan(after="begin", before="update", length_ns=length * S) for length in lengths)
    given = CheckpointProblem(
        version=VERSION, name="by hand", machines=4, copies=2, devices=1, state_bytes=12, iteration_ns=sum(lengths) * S,
        spans=spans, fill_ppm=500_000, alpha_ns=S, link_rate=1, buffer_bytes=6, buffers=2,
    )  # fmt: skip
    return replace(given, **changes)


FULL = problem((20, 10, 16))


def sizes(given: CheckpointProblem, variant: Variant = "planned") -> list[tuple[int, int, int]]:
    """Span, copy and bytes of each piece."""
    return [(piece.span, piece.copy, piece.bytes) for piece in partition(given, variant)]


def test_the_printed_example_with_two_copies_and_with_three() -> None:
    two = [(0, 1, 3), (0, 1, 3), (0, 1, 1), (1, 1, 3), (2, 1, 2)]
    assert sizes(FULL) == two
    assert pieces_late_ns(FULL, partition(FULL), "planned") == 0
    three = replace(FULL, copies=3)
    assert sizes(three) == [*two, *[(2, 2, 3)] * 4]
    assert pieces_late_ns(three, partition(three), "planned") == 3 * S
    assert partition(replace(FULL, copies=1)) == ()


def test_a_span_that_a_latency_fills_takes_nothing_and_ends() -> None:
    assert [span for span, _, _ in sizes(problem((2, 1, 0, 30)))] == [3] * 4


def test_other_variants_send_at_the_begin_or_one_piece_for_each_span() -> None:
    assert sizes(FULL, "blocking") == [(0, 1, 3)] * 4
    assert pieces_late_ns(FULL, partition(FULL, "blocking"), "blocking") == 16 * S
    wide = replace(FULL, buffer_bytes=9, buffers=3)
    assert sizes(wide, "naive") == [(0, 1, 9), (1, 1, 3)]
    with pytest.raises(InfeasibleError, match="needs a buffer of 9 B on every device, which has 6 B"):
        partition(FULL, "naive")
    slow = replace(FULL, copy_rate=1)
    assert sizes(slow, "no-pipeline")[:2] == [(0, 1, 3), (0, 1, 1)]
    assert sum(size for span, _, size in sizes(slow) if span == 0) == 7
    assert {piece.buffer for piece in partition(slow, "no-pipeline")} == {0}


def test_more_pieces_than_a_plan_has_are_refused() -> None:
    with pytest.raises(InputError, match="found pieces of 1 B, expected larger buffers"):
        partition(replace(FULL, state_bytes=10**6, buffer_bytes=2))


spans = st.lists(st.integers(0, 40), min_size=1, max_size=5).map(tuple)


@given(spans, st.integers(1, 4), st.integers(1, 40), st.integers(1, 4), st.sampled_from((None, 1, 2)), st.data())
def test_every_copy_is_whole_in_order_and_within_its_spans(
    lengths: tuple[int, ...], copies: int, size: int, buffers: int, copy_rate: int | None, data: st.DataObject
) -> None:
    variant: Variant = data.draw(st.sampled_from(("blocking", "no-pipeline", "planned")))
    given = problem(
        lengths, copies=copies, state_bytes=size, buffers=buffers, buffer_bytes=5 * buffers, copy_rate=copy_rate,
        alpha_ns=data.draw(st.sampled_from((0, 1, S))),
    )  # fmt: skip
    pieces, cost = partition(given, variant), piece_cost(given, variant)
    assert [copy for copy, _ in groupby(pieces, lambda piece: piece.copy)] == [*range(1, copies)]
    for _, group in groupby(pieces, lambda piece: piece.copy):
        offset = 0
        for piece in group:
            assert piece.offset == offset
            assert 0 < piece.bytes <= given.piece_bytes
            offset += piece.bytes
        assert offset == size
    assert [piece.span for piece in pieces] == sorted(piece.span for piece in pieces)
    for span in range(len(lengths) - 1):
        if variant != "blocking":
            assert sum(cost(piece.bytes) for piece in pieces if piece.span == span) <= lengths[span] * S // 2


def test_own_copies_go_with_messages_and_the_rest_before_the_update() -> None:
    messages = (
        TrainingMessage(name="one", start_ns=S, end_ns=5 * S),
        TrainingMessage(name="two", start_ns=6 * S, end_ns=8 * S),
    )
    given = replace(FULL, messages=messages, copy_rate=1)
    assert [(piece.message, piece.offset, piece.bytes) for piece in own_pieces(given)] == [
        (0, 0, 3), (0, 3, 1), (1, 4, 2), (None, 6, 6),
    ]  # fmt: skip
    assert own_late_ns(given, own_pieces(given)) == 0
    short = replace(given, spans=problem((30, 4)).spans)
    assert own_late_ns(short, own_pieces(short)) == 2 * S
    assert [piece.bytes for piece in own_pieces(FULL)] == [12]


@pytest.mark.parametrize(
    ("buffers", "copy", "arrived", "copied"), [(1, 4, 28, 32), (2, 4, 16, 20), (2, 6, 20, 28), (4, 6, 16, 28)]
)
def test_buffers_in_turns_as_the_published_pipeline(buffers: int, copy: int, arrived: int, copied: int) -> None:
    """Four pieces of 12 bytes, each of 4 s on the link and of `copy` s on the copy engine."""
    given = problem((0,), state_bytes=48, link_rate=4, copy_rate=12 // copy, buffers=buffers, buffer_bytes=12 * buffers)
    decisions: Any = SimpleNamespace(problem=given, pieces=partition(given), own=(), variant="planned")
    tasks = tasks_of(decisions)
    ends = simulate(tasks, RESOURCES).end
    last = {
        row: max(end for task, end in zip(tasks, ends, strict=True) if task.resources == (row,))
        for row in (LINK, ENGINE)
    }
    assert last == {LINK: arrived * S, ENGINE: copied * S}
