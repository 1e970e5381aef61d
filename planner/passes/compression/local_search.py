"""Local search over groups and options at once: every change is judged by the timeline of the whole iteration.

A group takes another option, is joined with the next one, is split, gives gradients to a neighbour, or exchanges its
option with that of a group nearby. The first change that saves time, or groups at the same time, is kept, until a pass
over all groups finds none.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from treadle.planner.passes.compression.candidates import Named
from treadle.planner.passes.compression.decisions import GradientGroup, Groups
from treadle.planner.passes.compression.evaluator import Evaluator
from treadle.planner.passes.compression.problem import CompressionProblem

CUTS = 8
"""Places at which a group is split, at most."""
SHIFTS = (1, 2, 4, 8)
"""Gradients that go to a neighbour."""
SEED = 0
SHAKES = 300
"""Local searches from changed plans, at most."""
SHAKEN = 3
"""Random changes before each."""
SHAKEN_EVALUATIONS = 40_000
"""Plans that these searches price, about: none begins after that."""
REACH = 3
"""How far away the group is with which options are exchanged."""


def improved(
    problem: CompressionProblem,
    evaluator: Evaluator,
    start: Groups,
    palette: Sequence[Named],
    *,
    stopped: Callable[[], bool],
    offer: Callable[[Groups, int], None],
) -> Groups:
    """The groups after the last change; `offer` is called after each."""
    best, best_ns = start, evaluator.hold(start)
    place, unchanged = len(best) - 1, 0
    while unchanged < len(best) and not stopped():
        for trial in changes(problem, best, place, palette):
            most = best_ns + (len(trial) < len(best))
            ns = evaluator.time(trial, most)
            if ns < most:
                best, best_ns, unchanged = trial, evaluator.hold(trial), -1
                offer(best, best_ns)
                break
            if stopped():
                return best
        unchanged += 1
        place = (place if not unchanged else place - 1) % len(best)
    return best


def shaken(
    problem: CompressionProblem,
    evaluator: Evaluator,
    start: Groups,
    palette: Sequence[Named],
    *,
    stopped: Callable[[], bool],
    offer: Callable[[Groups, int], None],
) -> Groups:
    """The best groups of repeated local searches, each from the best so far with a few random changes."""
    best, best_ns = start, evaluator.time(start)
    chance = random.Random(SEED)
    most = evaluator.evaluations + SHAKEN_EVALUATIONS
    for _ in range(SHAKES):
        if stopped() or evaluator.evaluations > most:
            break
        trial = best
        for _ in range(SHAKEN):
            options = list(changes(problem, trial, chance.randrange(len(trial)), palette))
            trial = chance.choice(options) if options else trial
        trial = improved(problem, evaluator, trial, palette, stopped=stopped, offer=lambda groups, ns: None)
        ns = evaluator.time(trial)
        if (ns, len(trial)) < (best_ns, len(best)):
            best, best_ns = trial, ns
            offer(best, best_ns)
    return best


def changes(problem: CompressionProblem, groups: Groups, place: int, palette: Sequence[Named]) -> Iterator[Groups]:
    """All that may be done with the group at `place`, within the limit of bytes."""
    group = groups[place]
    for name, steps in palette:
        if (name, steps) != (group.compressor, group.steps):
            yield _with(groups, place, 1, replace(group, compressor=name, steps=steps))
    if place + 1 < len(groups):
        other = groups[place + 1]
        if problem.fits(group.first, other.last):
            yield _with(groups, place, 2, replace(group, last=other.last))
            yield _with(groups, place, 2, replace(other, first=group.first))
        for number in SHIFTS:
            if number <= group.last - group.first and problem.fits(group.last + 1 - number, other.last):
                cut = group.last - number
                yield _with(groups, place, 2, replace(group, last=cut), replace(other, first=cut + 1))
            if number <= other.last - other.first and problem.fits(group.first, group.last + number):
                cut = group.last + number
                yield _with(groups, place, 2, replace(group, last=cut), replace(other, first=cut + 1))
    inside = group.last - group.first
    for number in range(1, min(inside, CUTS) + 1):
        cut = group.first + (number * (inside + 1)) // (min(inside, CUTS) + 1) - 1
        if group.first <= cut < group.last:
            yield _with(groups, place, 1, replace(group, last=cut), replace(group, first=cut + 1))
    for far in range(place + 1, min(place + 1 + REACH, len(groups))):
        other = groups[far]
        if (other.compressor, other.steps) != (group.compressor, group.steps):
            swapped = _with(groups, place, 1, replace(group, compressor=other.compressor, steps=other.steps))
            yield _with(swapped, far, 1, replace(other, compressor=group.compressor, steps=group.steps))


def _with(groups: Groups, place: int, count: int, *instead: GradientGroup) -> Groups:
    return (*groups[:place], *instead, *groups[place + count :])
