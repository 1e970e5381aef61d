"""Addresses for plans by bytes."""

from __future__ import annotations

import random

import numpy as np
from msgspec.structs import replace

from tests.planner.passes.swap import cases
from tests.planner.passes.swap.plans import reach
from treadle.planner.passes.swap.arrays import Nodes, arrays_of
from treadle.planner.passes.swap.check import check
from treadle.planner.passes.swap.evaluate import decisions
from treadle.planner.passes.swap.packing import packed
from treadle.planner.passes.swap.problem import SwapProblem
from treadle.planner.passes.swap.replay import replay
from treadle.planner.passes.swap.spans import SPANS, pack_spans, plan_spans, scan_spans
from treadle.planner.passes.swap.two_pass import Settings

AMPLE = 2**50


def by_count(problem: SwapProblem, settings: Settings = SPANS) -> Nodes:
    nodes = plan_spans(arrays_of(problem), range(len(problem.ops)), problem.arena_bytes, "bytes", settings)
    assert nodes is not None
    return nodes


def test_a_packed_plan_is_safe_and_takes_as_long() -> None:
    """Whatever room the packing takes, all waits for addresses hold in the plan by bytes already."""
    for seed in range(20):
        rng = random.Random(5000 + seed)
        problem = cases.random_problem(rng, slack=rng.random() * 0.7)
        arrays, nodes = arrays_of(problem), by_count(problem, Settings(seed % 3, bool(seed % 2)))
        found, height = packed(arrays, nodes, AMPLE)
        assert found is not None
        assert replay(arrays, found).makespan_ns == replay(arrays, nodes).makespan_ns
        assert reach(arrays, found) == height
        machine = replace(problem.machine, memory_bytes=height + problem.scratch_bytes)
        wide = replace(problem, machine=machine, reserve_bytes=0)
        assert check(decisions(wide, arrays, range(len(problem.ops)), found, None, "offset")) == [], seed


def test_what_does_not_pack_says_how_high_it_is() -> None:
    for seed in range(10):
        problem = cases.random_problem(random.Random(5100 + seed), slack=0.3)
        arrays, nodes = arrays_of(problem), by_count(problem)
        _, lowest = packed(arrays, nodes, AMPLE)
        found, height = packed(arrays, nodes, 1)
        assert found is None
        assert 1 < height <= lowest
        again, _ = packed(arrays, nodes, height)
        assert again is not None


def test_a_packing_that_is_stopped_leaves_the_other_way() -> None:
    for seed in range(6):
        problem = cases.random_problem(random.Random(5100 + seed), slack=0.6)
        arrays, order = arrays_of(problem), range(len(problem.ops))
        assert packed(arrays, by_count(problem), AMPLE, lambda: True)[0] is None
        scanned = scan_spans(arrays, order, problem.arena_bytes, True, SPANS)
        found = pack_spans(arrays, order, problem.arena_bytes, stop=lambda: True)
        assert (found is None) == (scanned is None)
        if found is not None and scanned is not None:
            assert found.room is None
            assert all((a == b).all() for a, b in zip(found.nodes, scanned, strict=True))


def test_a_packing_begins_with_the_bytes_that_are_given() -> None:
    """What packed with some bytes is found again from there, or something faster."""
    again = 0
    for seed in range(8):
        problem = cases.random_problem(random.Random(5300 + seed), slack=0.3)
        arrays, order, room = arrays_of(problem), range(len(problem.ops)), problem.arena_bytes
        first = pack_spans(arrays, order, room)
        if first is None or first.room is None:
            continue
        second = pack_spans(arrays, order, room, count=first.room)
        assert second is not None
        assert replay(arrays, second.nodes).makespan_ns <= replay(arrays, first.nodes).makespan_ns
        assert reach(arrays, second.nodes) <= room
        again += 1
    assert again


def test_offset_is_no_slower_than_addresses_on_the_way() -> None:
    better = 0
    for seed in range(12):
        problem = cases.random_problem(random.Random(5200 + seed), slack=0.3)
        arrays, order = arrays_of(problem), range(len(problem.ops))
        nodes = plan_spans(arrays, order, problem.arena_bytes, "offset")
        scanned = scan_spans(arrays, np.array(order), problem.arena_bytes, True, SPANS)
        if scanned is None:
            better += nodes is not None
            continue
        assert nodes is not None
        first, second = replay(arrays, nodes).makespan_ns, replay(arrays, scanned).makespan_ns
        assert first <= second
        better += first < second
    assert better


def test_equal_sizes_always_pack() -> None:
    """Unit sizes lose no byte: an interval graph needs no more places than it has intervals at one moment."""
    for seed in range(5):
        line = [random.Random(seed).randint(1, 6) for _ in range(20)]
        problem = cases.belady(line, objects=3)
        nodes = by_count(problem, Settings(0))
        found, height = packed(arrays_of(problem), nodes, 3)
        assert found is not None
        assert height <= 3
