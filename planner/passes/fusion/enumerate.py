"""Every schedule of a program: breadth-first over transformations, each program once by its canonical form.

The order is fixed: schedules by the number of transformations that lead to them, then by the order of candidates.
Transformations that are refused are recorded with their reasons (CoCoNet, section 5).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from treadle.planner.passes.fusion.candidates import AllowedTransforms, LeftOut, Refused, outcomes
from treadle.planner.passes.fusion.canonical import canonical_hash
from treadle.planner.passes.fusion.decisions import TransformCall
from treadle.planner.passes.fusion.program import Program
from treadle.planner.passes.fusion.refusal import InvalidTransform

LIMIT = 2000


def never() -> bool:
    """A search without a time limit is never over."""
    return False


@dataclass(frozen=True)
class Derivation:
    """A program and a shortest list of transformations that make it from the one that the search began with."""

    program: Program
    hash: str
    calls: tuple[TransformCall, ...] = ()
    depth: int = 0


@dataclass(frozen=True)
class Edge:
    """Schedules by their position."""

    source: int
    target: int
    calls: tuple[TransformCall, ...]


@dataclass(frozen=True)
class Refusal:
    """The last of `calls` does not apply to a schedule after the others."""

    source: int
    calls: tuple[TransformCall, ...]
    error: InvalidTransform


@dataclass(frozen=True)
class Enumeration:
    """`complete` unless a limit cut the search: its depth, its number of schedules, MOST_REGIONS of a move, or the
    clock."""

    schedules: tuple[Derivation, ...]
    edges: tuple[Edge, ...]
    refusals: tuple[Refusal, ...]
    complete: bool = True


def enumerate_schedules(
    program: Program,
    allowed: AllowedTransforms,
    *,
    begin_with: Sequence[TransformCall] = (),
    depth: int | None = None,
    limit: int = LIMIT,
    over: Callable[[], bool] = never,
) -> Enumeration:
    """Up to `limit` schedules within `depth` steps, those found by then once it is `over`; `begin_with`: the calls that
    derived `program`."""
    found = [Derivation(program, canonical_hash(program), tuple(begin_with))]
    position = {found[0].hash: 0}
    edges: list[Edge] = []
    refusals: list[Refusal] = []
    waiting, complete = deque([0]), True
    while waiting:
        at = waiting.popleft()
        schedule = found[at]
        if schedule.depth == depth:
            complete = False
            continue
        for outcome in outcomes(schedule.program, allowed, first=at == 0):
            if over():
                return Enumeration(tuple(found), tuple(edges), tuple(refusals), complete=False)
            if isinstance(outcome, LeftOut):
                complete = False
                continue
            if isinstance(outcome, Refused):
                refusals.append(Refusal(at, outcome.calls, outcome.error))
                continue
            made = canonical_hash(outcome.rewrite.program)
            if made not in position:
                if len(found) == limit:
                    return Enumeration(tuple(found), tuple(edges), tuple(refusals), complete=False)
                position[made] = len(found)
                waiting.append(len(found))
                calls = (*schedule.calls, *outcome.calls)
                found.append(Derivation(outcome.rewrite.program, made, calls, schedule.depth + 1))
            edges.append(Edge(at, position[made], outcome.calls))
    return Enumeration(tuple(found), tuple(edges), tuple(refusals), complete)
