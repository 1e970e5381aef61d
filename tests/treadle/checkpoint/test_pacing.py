"""Pieces move when the links are idle, and shrinking spans are noticed."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

from tests.treadle.checkpoint.small import decisions, problem
from treadle.checkpoint.guard import IN_A_ROW, SpanGuard
from treadle.checkpoint.pacing import IterationTimes, MessageCount, releases_of
from treadle.planner.passes.checkpoint.planning import CheckpointOptions
from treadle.runtime.compression import ddp


def test_a_span_begins_when_its_message_is_done_and_own_copies_when_it_begins() -> None:
    found = releases_of(decisions(), 2)
    assert found.spans == (0, 1, 2)
    assert found.own == (-1, 0, 1)


@pytest.mark.parametrize(
    ("messages", "spans"),
    [(0, (2,)), (1, (0, 2)), (4, (0, 0, 1, 1, 2)), (3, (0, 0, 1, 2))],
    ids=["none", "one", "twice as many", "some more"],
)
def test_other_numbers_of_messages_keep_spans_in_proportion_and_never_early(
    messages: int, spans: tuple[int, ...]
) -> None:
    assert releases_of(decisions(), messages).spans == spans


def test_blocking_waits_for_no_message() -> None:
    assert releases_of(decisions(CheckpointOptions(variant="blocking")), 2).spans == (2, 2, 2)


def test_idle_times_are_those_without_any_message() -> None:
    times = IterationTimes(0, began=(10, 15, 40), done=(30, 20, 45), end=60)
    assert times.idle_ns() == [10, 0, 10, 15]


def test_messages_are_counted_from_one() -> None:
    calls: list[tuple[str, int]] = []
    count = MessageCount(lambda number: calls.append(("begin", number)), lambda number: calls.append(("done", number)))
    for _ in range(2):
        count.start()
        count.begin()
        count.begin()
        count.done()
        count.done()
        assert len(count.end().done) == 2
    assert calls == [("begin", 1), ("begin", 2), ("done", 1), ("done", 2)] * 2


def test_a_span_that_has_shrunk_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    guard = SpanGuard(problem())
    with caplog.at_level(logging.WARNING, "treadle.checkpoint"):
        for idle in [[400_000, 10_000, 5]] * (2 * IN_A_ROW):
            guard.watch(idle)
    assert len(caplog.messages) == 1
    assert "idle for 10 us after allreduce 0, the plan has 100 us" in caplog.messages[0]
    assert [slip.slip_ns for slip in guard.slips] == [0, 80_000]


def test_a_span_that_is_short_now_and_then_is_not(caplog: pytest.LogCaptureFixture) -> None:
    guard = SpanGuard(problem())
    for number in range(4 * IN_A_ROW):
        guard.watch([400_000, 10_000 if number % IN_A_ROW else 100_000, 5])
    assert not caplog.messages


def test_three_ranks_average_as_training_without_checkpoints_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def alone(buffer: torch.Tensor, **_: object) -> SimpleNamespace:
        done: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        done.set_result([buffer])
        return SimpleNamespace(get_future=lambda: done)

    monkeypatch.setattr(ddp.distributed, "get_world_size", lambda group: 3)
    monkeypatch.setattr(ddp.distributed, "all_reduce", alone)
    gradient = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    expected = gradient * (1 / 3)  # as DistributedDataParallel scales gradients
    assert not torch.equal(expected, gradient / 3)
    assert torch.equal(ddp.averaged(gradient.clone(), None).wait(), expected)
