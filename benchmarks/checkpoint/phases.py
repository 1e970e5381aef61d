"""How long each phase of a recovery takes, as planned and as measured in trials in which hosts are lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from benchmarks.common import Row, Table
from treadle.planner.passes.checkpoint.partition import transfer_ns
from treadle.planner.passes.checkpoint.problem import CheckpointProblem

TrialTimes = Mapping[str, float | None]
"""Seconds from a fault until each of `trials.PHASES`."""
HOW = "hosts lost, states from memory; an agent on another host starts at the fault, so that only its later end counts"


def table(trials: Sequence[TrialTimes], problem: CheckpointProblem, iteration_s: float) -> Table:
    """Of the trials that have all moments: the median and the slowest of each phase, beside what the plan takes."""
    parted = [found for each in trials if (found := parts(each)) is not None]
    fetch = (problem.alpha_ns + transfer_ns(problem.state_bytes, problem.link_rate)) / 1e9
    planned = {"detect and plan": problem.recovery.detect_ns / 1e9, "fetch": fetch, "first step": iteration_s}
    rows: list[Row] = [
        {
            "phase": phase,
            "planned s": planned.get(phase),
            "s": median(each[phase] for each in parted),
            "slowest": max(each[phase] for each in parted),
        }
        for phase in (parted[0] if parted else ())
    ]
    return Table("phases of a recovery", rows, (f"{HOW}; {len(parted)} trials",))


def parts(moments: TrialTimes) -> dict[str, float] | None:
    """Seconds of each phase, one after the other; None where a moment is missing."""
    known = {name: each for name, each in moments.items() if each is not None}
    if len(known) < len(moments):
        return None
    ready = max(known["seen"], known["replaced"])
    fetched = max(ready, known["fetched"])
    whole = max(fetched, known["whole"])
    return {
        "detect and plan": known["seen"],
        "replace": ready - known["seen"],
        "fetch": fetched - ready,
        "agree": whole - fetched,
        "restart": known["states"] - whole,
        "first step": known["step"] - known["states"],
    }
