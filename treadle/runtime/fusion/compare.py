"""Runs a schedule on example data and compares what it leaves on every rank with the reference interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from treadle.planner.passes.fusion.evaluate import evaluate
from treadle.planner.passes.fusion.rounding import Intervals, intervals
from treadle.runtime.fusion import cuda, fibers, processes
from treadle.runtime.fusion.build import Compiled, LoweredSchedule
from treadle.runtime.fusion.data import Array, Kind, differences, exact, example, place
from treadle.runtime.fusion.runs import RunReport, Runs
from treadle.runtime.fusion.tensors import Tensors
from treadle.runtime.joined import StartedRank
from treadle.runtime.native_build import Target

MOST_PROBLEMS = 20
RUNNERS: Mapping[Target, Callable[[Compiled, Tensors, Runs], RunReport]] = {
    "fibers": fibers.run,
    "process": processes.run,
    "cuda": cuda.run,
}


@dataclass(frozen=True)
class ScheduleComparison:
    """`problems` has a line for each tensor that is wrong, `undecided` one for each operation that jumps where rounding
    decides on which side its operand is; `bits` says whether every bit was compared."""

    problems: tuple[str, ...]
    bits: bool
    report: RunReport
    undecided: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        return not self.problems


def compare(
    compiled: Compiled,
    lowered: LoweredSchedule,
    runs: Runs | None = None,
    *,
    kind: Kind = "integers",
    values: Mapping[str, Array] | None = None,
    started: StartedRank | None = None,
) -> ScheduleComparison:
    """Every run begins with the same `values`, by default random ones; integers are compared bit by bit where no order
    of sums changes them, all else with the interval in which rounding may leave each element. With `started` this
    process runs and compares its own rank only, as all others do, and returns what all of them found.

    Raises what the back-ends raise, among them CheckFailed for a schedule that hangs.
    """
    runs = runs or Runs()
    alone = compiled.target != "process" or started is not None
    tensors = Tensors(lowered.buffers, compiled.ranks * runs.repeats, shared=not alone)
    try:
        given = example(lowered.program, lowered.bindings, kind, runs.seed) if values is None else values
        bits = kind == "integers" and exact(lowered.program)
        return _compared(compiled, lowered, tensors, runs, given, bits, started)
    finally:
        tensors.close()


def _compared(
    compiled: Compiled,
    lowered: LoweredSchedule,
    tensors: Tensors,
    runs: Runs,
    given: Mapping[str, Array],
    bits: bool,
    started: StartedRank | None,
) -> ScheduleComparison:
    ranks = range(compiled.ranks) if started is None else (started.rank,)
    program, bindings = lowered.program, lowered.bindings
    draws = any(node.op == "Dropout" for node in program.nodes)

    @cache
    def expected(step: int) -> tuple[dict[str, Array], Intervals | None]:
        values = evaluate(program, bindings, given, seed=runs.seed, step=step)
        return values, None if bits else intervals(program, bindings, values, seed=runs.seed, step=step)

    wanted = [expected(runs.step + number * draws) for number in range(runs.repeats)]
    rows = [range(first, first + compiled.ranks) for first in range(0, tensors.rows, compiled.ranks)]
    for row, (values, _) in zip(rows, wanted, strict=True):
        tensors.poison([row[rank] for rank in ranks])
        place(tensors, row, lowered, values, ranks)
    if started is None:
        report = RUNNERS[compiled.target](compiled, tensors, runs)
    else:
        report = processes.run_started(compiled, tensors, started, runs)
    found = [
        f"run {number}: {line}"
        for number, (row, (values, within)) in enumerate(zip(rows, wanted, strict=True))
        for line in differences(tensors, row, lowered, values, within, ranks)
    ]
    problems = found if started is None else [line for lines in started.gather(found) for line in lines]
    undecided = {str(each): None for _, within in wanted if within is not None for each in within.undecided}
    return ScheduleComparison(tuple(problems[:MOST_PROBLEMS]), bits, report, tuple(undecided))
