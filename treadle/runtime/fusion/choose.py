"""Times of the most promising schedules of a program, on this machine, with one process for each rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from codegen.fusion.lower import Lowered, lower
from planner.errors import CheckFailed, InputError
from planner.fusion.planning import FusionPlan, Ranked
from treadle.runtime.fusion import processes
from treadle.runtime.fusion.build import Compiled, build
from treadle.runtime.fusion.data import fill
from treadle.runtime.fusion.measure import halving
from treadle.runtime.fusion.runs import Runs
from treadle.runtime.fusion.tensors import Tensors

MOST_CANDIDATES = 8
MOST_RANKS = 16


@dataclass(frozen=True)
class _Candidate:
    ranked: Ranked
    lowered: Lowered
    compiled: Compiled


def times_of(found: FusionPlan, show: Callable[[str], None] = lambda _: None) -> dict[str, int]:
    """ns of one run by name of the schedule, for the schedules of least predicted time that this machine can run.

    The slower ones are given up early. Raises InputError for too many ranks, or where nothing can be run;
    MissingBackendError without g++.
    """
    ranks = found.bindings.ranks * found.bindings.groups
    if ranks > MOST_RANKS:
        raise InputError(f"found {ranks} ranks, expected at most {MOST_RANKS} to be measured here", where="--measure")
    candidates: list[_Candidate] = []
    why = "it has no schedules"
    for ranked in found.ranked:
        if len(candidates) == MOST_CANDIDATES:
            break
        show(f"compiling {ranked.name}")
        try:
            lowered = lower(ranked.program, found.bindings)
            candidates.append(_Candidate(ranked, lowered, build(lowered, "process")))
        except (InputError, CheckFailed) as error:
            why = str(error)
    if not candidates:
        raise InputError(f"found no schedule that runs on processes: {why}", where="--measure")

    def run(candidate: _Candidate, repeats: int) -> Sequence[float]:
        show(f"running {candidate.ranked.name}, {repeats} times")
        return _seconds(candidate, repeats)

    return {timed.candidate.ranked.name: round(timed.seconds * 1e9) for timed in halving(candidates, run)}


def _seconds(candidate: _Candidate, repeats: int) -> Sequence[float]:
    lowered, compiled = candidate.lowered, candidate.compiled
    tensors = Tensors(lowered.buffers, compiled.ranks, shared=True)
    try:
        fill(tensors, range(compiled.ranks), lowered)
        return processes.run(compiled, tensors, Runs(repeats=repeats)).seconds
    finally:
        tensors.close()
