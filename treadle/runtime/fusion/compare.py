"""Runs a schedule on example data and compares what it leaves on every rank with the reference interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from planner.fusion.evaluate import evaluate
from treadle.runtime.fusion import cuda, fibers, processes
from treadle.runtime.fusion.build import Compiled, Schedule
from treadle.runtime.fusion.data import Array, Kind, differences, exact, example, place
from treadle.runtime.fusion.runs import Report, Runs
from treadle.runtime.fusion.tensors import Tensors
from treadle.runtime.native_build import Target

MOST_PROBLEMS = 20
RUNNERS: Mapping[Target, Callable[[Compiled, Tensors, Runs], Report]] = {
    "fibers": fibers.run,
    "process": processes.run,
    "cuda": cuda.run,
}


@dataclass(frozen=True)
class Outcome:
    """`problems` has a line for each tensor that is wrong; `bits` says whether every bit was compared."""

    problems: tuple[str, ...]
    bits: bool
    report: Report

    @property
    def good(self) -> bool:
        return not self.problems


def compare(
    compiled: Compiled,
    lowered: Schedule,
    runs: Runs | None = None,
    *,
    kind: Kind = "integers",
    values: Mapping[str, Array] | None = None,
) -> Outcome:
    """Every run begins with the same `values`, by default random ones; integers are compared bit by bit where no order
    of sums changes them, all else within a tolerance.

    Raises what the back-ends raise, among them CheckFailed for a schedule that hangs.
    """
    runs = runs or Runs()
    tensors = Tensors(lowered.buffers, compiled.ranks * runs.repeats, shared=compiled.target == "process")
    try:
        given = example(lowered.program, lowered.bindings, kind, runs.seed) if values is None else values
        return _compared(compiled, lowered, tensors, runs, given, kind == "integers" and exact(lowered.program))
    finally:
        tensors.close()


def _compared(
    compiled: Compiled, lowered: Schedule, tensors: Tensors, runs: Runs, given: Mapping[str, Array], bits: bool
) -> Outcome:
    tensors.poison()
    wanted = [
        evaluate(lowered.program, lowered.bindings, given, seed=runs.seed, step=runs.step + number)
        for number in range(runs.repeats)
    ]
    rows = [range(first, first + compiled.ranks) for first in range(0, tensors.rows, compiled.ranks)]
    for row, each in zip(rows, wanted, strict=True):
        place(tensors, row, lowered, each)
    report = RUNNERS[compiled.target](compiled, tensors, runs)
    problems = [
        f"run {number}: {line}"
        for number, (row, each) in enumerate(zip(rows, wanted, strict=True))
        for line in differences(tensors, row, lowered, each, bits=bits)
    ]
    return Outcome(tuple(problems[:MOST_PROBLEMS]), bits, report)
