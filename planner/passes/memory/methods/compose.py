"""Plans composed of segments: repeated segments are solved once, a dynamic program picks an option for each.

P_s, the bytes that segments 1..s keep from the forward pass on, is the state. An option o of segment s fits where

    B + P_{s-1} + carried_s + forward_o <= M    and    B + P_{s-1} + ground_s + backward_o <= M,

and leads to P_s = P_{s-1} + keep_o, counted in units rounded up; the least time for each state is kept. Several
segments in a row may be one step, which keeps nothing between them (nested checkpoints, as in "Training Deep Nets with
Sublinear Memory Cost", section 4). Composed plans count bytes as kept beyond their last use, so the exact peak is at
most the estimate, and local search over the whole plan (`local_search.py`) uses the slack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from treadle.planner.passes.memory.bound import least_bytes, least_time
from treadle.planner.passes.memory.lower import RecomputeSchedule, prune
from treadle.planner.passes.memory.methods.blocks import GATE, Option, options
from treadle.planner.passes.memory.methods.lifetimes import Lifetimes
from treadle.planner.passes.memory.methods.local_search import evict, local_search, refill, whole_plans
from treadle.planner.passes.memory.methods.segments import Cut, Segment, narrow_places
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.program import RunForward

UNITS = 8192
"""Units in which the bytes between base and budget are counted."""
FEWEST = 4
"""Segments to compose, at least."""
LARGEST = 160
"""Forward and backward nodes of a step of several segments, at most."""
WORTH = 2
"""Eviction from store-all ends once its plan is slower than the best one by this factor."""
STRETCH = (1.0, 1.05, 1.1, 1.2, 1.4)
"""Factors of the room for which options are chosen: where none fit, those of a larger room mostly need little eviction,
since bytes count as kept beyond their last use."""
OnBetter = Callable[[RecomputeSchedule], None]


class ChosenOption(NamedTuple):
    """One choice of the dynamic program."""

    segment: Segment
    option: Option


def solve_segments(
    problem: MemoryProblem, effort: int = 1, on_better: OnBetter = lambda schedule: None
) -> RecomputeSchedule | None:
    """The fastest plan found within the budget, pruned; None when none was found.

    `on_better` is called with each better plan. Equal inputs give equal results; effort 2, 3, .. is more work.
    """
    room = problem.budget_bytes - problem.base_bytes
    if problem.budget_bytes < least_bytes(problem):
        return None
    best: tuple[int, RecomputeSchedule] | None = None

    def take(lives: Lifetimes) -> None:
        nonlocal best
        if best is None or lives.time_ns < best[0]:
            best = lives.time_ns, lives.schedule()
            on_better(best[1])

    found: list[Lifetimes] = []
    composed = compose(problem, levels=3 + 3 * effort, rounds=6 * effort, group=1 + effort, stretch=STRETCH)
    if composed is not None and evict(lives := Lifetimes(problem, composed[0]), room, WORTH * lives.time_ns):
        found.append(lives)
        take(lives)
        refill(lives, room)
        take(lives)
    for lives in whole_plans(problem):
        if evict(lives, room, None if best is None else WORTH * best[0]):
            refill(lives, room)
            found.append(lives)
            take(lives)
            if lives.time_ns == least_time(problem):
                return lives.schedule()
    found.sort(key=lambda lives: lives.time_ns)
    for seed, lives in enumerate(found):
        local_search(lives, room, 100 * effort, seed, take)
    for seed in range(effort):
        if best is not None:
            local_search(Lifetimes(problem, best[1]), room, 100 * effort, len(found) + seed, take)
    return None if best is None else best[1]


def compose(
    problem: MemoryProblem, levels: int, rounds: int, group: int, repeated: int = 1, stretch: Sequence[float] = (1.0,)
) -> tuple[RecomputeSchedule, int] | None:
    """The best plan made of segments, pruned, and an estimate in bytes that its exact peak does not exceed.

    Up to `group` segments are one step. `levels` and `rounds` say how much work goes into the options of a segment
    (`blocks.py`). The plan fits the room that the base leaves, times the first factor of `stretch` for which there is a
    plan. None where there are too few segments, fewer than `repeated` of a kind on average, or no plan.
    """
    cut = Cut.of(problem, narrow_places(problem))
    known: dict[bytes, list[Option]] = {}
    steps: dict[tuple[int, int], tuple[Segment, list[Option]]] = {}
    count = len(cut.fwd)
    if count < FEWEST:
        return None
    if repeated > 1 and count < repeated * len({cut.segment(at, at + 1).signature for at in range(count)}):
        return None
    for first in range(count):
        for end in range(first + 1, min(first + group, count) + 1):
            segment = cut.segment(first, end)
            if end > first + 1 and len(segment.fwd) + len(segment.bwd) > LARGEST:
                break
            if segment.signature not in known:
                known[segment.signature] = options(segment, levels if end == first + 1 else 3, rounds)
            steps[first, end] = segment, known[segment.signature]
    room = problem.budget_bytes - problem.base_bytes
    chosen = next(filter(None, (choose(int(room * factor), count, steps) for factor in stretch)), None)
    if chosen is None:
        return None
    path, estimate = chosen
    return _schedule(problem, path), problem.base_bytes + estimate


def choose(
    room: int, count: int, steps: dict[tuple[int, int], tuple[Segment, list[Option]]]
) -> tuple[list[ChosenOption], int] | None:
    """The fastest path from segment 0 to `count` within `room` bytes, and the most bytes it may take; None: no path."""
    unit = max(1, -(-room // UNITS))
    size = room // unit + 1
    never = np.iinfo(np.int64).max // 2
    time = np.full((count + 1, size), never, np.int64)
    came = np.full((count + 1, size), -1, np.int64)
    choices: list[tuple[int, Segment, Option]] = []
    time[0, 0] = 0
    for (first, end), (segment, found) in sorted(steps.items(), key=lambda step: step[0]):
        for option in found:
            choices.append((first, segment, option))
            left = room - max(segment.carried + option.forward, segment.ground + option.backward)
            taken = -(-option.keep // unit)
            most = min(left // unit, size - 1 - taken) + 1
            if left < 0 or most <= 0:
                continue
            candidate = time[first, :most] + option.time_ns
            target = time[end, taken : taken + most]
            better = candidate < target
            target[better] = candidate[better]
            came[end, taken : taken + most][better] = len(choices) - 1
    state = int(time[count].argmin())
    if time[count, state] >= never:
        return None
    path, at, estimate = [], count, 0
    while at:
        first, segment, option = choices[came[at, state]]
        state -= -(-option.keep // unit)
        at = first
        peak = max(segment.carried + option.forward, segment.ground + option.backward)
        estimate = max(estimate, state * unit + peak)
        path.append(ChosenOption(segment, option))
    return path[::-1], estimate


def _schedule(problem: MemoryProblem, path: list[ChosenOption]) -> RecomputeSchedule:
    """The chosen options as one schedule. What a segment keeps for later ones is kept until they end; pruning ends it
    with its last read."""
    stages = len(problem.bwd) + 1
    runs: list[list[RunForward]] = [[] for _ in range(stages)]
    kept: list[set[int]] = [set() for _ in range(stages)]
    backward = [0] * len(problem.bwd)
    for segment, option in path:
        for k, way in zip(segment.bwd, option.choices, strict=True):
            backward[k] = way
        for i, lives in zip(segment.fwd, option.lives, strict=True):
            for life in lives:
                start = segment.stage(life.start)
                runs[start].append(RunForward(i, life.impl))
                if life.end >= GATE:
                    for t in range(start, segment.stage(life.end)):
                        kept[t].add(i)
    ordered = tuple(tuple(sorted(found, key=lambda run: run.node)) for found in runs)
    return prune(problem, RecomputeSchedule(ordered, tuple(map(frozenset, kept)), tuple(backward)))
