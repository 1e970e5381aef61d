"""Measured runs: what is recorded, on which core, and what happens where memory is short."""

from __future__ import annotations

import os
import resource
from typing import Any

import numpy as np
import psutil
import pytest

from treadle.planner.errors import CheckFailed, LimitError
from treadle.planner.passes.index.configurations import FragmentedLog
from treadle.planner.passes.index.families import drawn
from treadle.planner.passes.index.problem import DrawnWorkload
from treadle.runtime.index import measure
from treadle.runtime.index.measure import IndexRun, loop_ns, measured, one_run, pinned

LOG = FragmentedLog(fragment_keys=64, most_fragments=128, new_fragments=8)
WORKLOAD = drawn(DrawnWorkload(family="books", bulk=1000, operations=5000, insert_share=0.5))


def test_a_measurement_has_the_times_of_equal_parts_and_the_memory() -> None:
    before = os.sched_getaffinity(0), resource.getrlimit(resource.RLIMIT_AS)
    found = measured(LOG, WORKLOAD, insert_share=0.5)
    assert (os.sched_getaffinity(0), resource.getrlimit(resource.RLIMIT_AS)) == before
    assert len(found.windows_ns) == 16
    assert min(found.windows_ns) >= 1
    assert found.load_ns > 0
    assert found.bytes >= 16 * 3500
    assert loop_ns(WORKLOAD) > 0


def test_a_short_trace_has_as_many_parts_as_operations() -> None:
    assert len(measured(LOG, WORKLOAD.first(3), insert_share=0.5, repeats=1).windows_ns) == 3


def test_the_median_run_by_the_time_of_all_operations_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = iter([IndexRun(1, (5, 9), 10, 3), IndexRun(2, (1, 1), 20, 3), IndexRun(3, (7, 6), 30, 3)])
    monkeypatch.setattr(measure, "one_run", lambda *_, **__: next(runs))
    found = measured(LOG, WORKLOAD, insert_share=0.5)
    assert (found.load_ns, found.windows_ns, found.bytes) == (3, (7, 6), 30)


def test_runs_that_answer_differently_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = iter(IndexRun(1, (5,), 10, answers) for answers in (3, 3, 4))
    monkeypatch.setattr(measure, "one_run", lambda *_, **__: next(runs))
    with pytest.raises(CheckFailed, match="fragmented log 64/128/8 gave other answers"):
        measured(LOG, WORKLOAD, insert_share=0.5)


def test_runs_of_one_workload_answer_the_same_for_every_configuration() -> None:
    small = FragmentedLog(fragment_keys=16, most_fragments=8, new_fragments=2)
    assert one_run(LOG, WORKLOAD, 0.5).answers == one_run(small, WORKLOAD, 0.5, unique=True).answers


def test_one_core_is_used_and_all_are_given_back() -> None:
    before = os.sched_getaffinity(0)

    def fail() -> None:
        with pinned():
            assert os.sched_getaffinity(0) == {max(before)}
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert os.sched_getaffinity(0) == before


def test_an_index_that_needs_more_than_is_free_ends_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in a process that Linux ends: 6 million keys, whose arrays are no part of the heap, and 4 MiB are free."""
    workload = drawn(DrawnWorkload(family="sequence", bulk=6_000_000, operations=1, insert_share=0.0))
    free: Any = type("Free", (), {"available": 0})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    monkeypatch.setattr(measure, "SPARED", 4 << 20)
    with pytest.raises(LimitError, match="the index ran out of memory while it loaded 6000000 keys"):
        one_run(LOG, workload, 0.0)
    assert len(np.empty(1 << 20)) == 1 << 20
