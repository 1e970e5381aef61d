"""Costs of a job's step, measured on this machine as the job runs it: all its processes at once.

1. The calls of the step, and other implementations of them, run in the order of the step on every process, one thread
   each. The least time of a call leaves out the moments in which another process had its core.
2. The whole step runs on every process as it will under plans, except that it keeps everything and sends nothing. It
   takes the CPU time of the slowest process, or that of all divided by the number of cores if that is more: what else
   the machine does meanwhile is left out. In it is what no call shows: processes that share a core, and Python between
   the calls. Every call's time is multiplied by the ratio of this time to the sum of its calls.

Both are done once for each step, number of processes and machine (`kept`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from treadle.host.cores import cores
from treadle.host.source import source_digest
from treadle.job.kept import CostCache, machine
from treadle.job.part import JobPart, MeasuredRank, MeasuredTraining, StepTimes
from treadle.job.train import TrainingTask, planned_step, timed_steps
from treadle.planner.documents.scalars import Count
from treadle.planner.documents.store import digest
from treadle.planner.documents.trace import Costs, Op, Trace
from treadle.planner.graph.unrolling import OWN

ROUNDS = 2
"""Measurements of the whole step, some seconds apart, of which the faster one counts: a shared machine can be slow for
seconds."""

SOURCES = (
    "kernels/*.py",
    "kernels/*.cpp",
    "capture/costs/*.py",
    "job/*.py",
    "passes/*/job.py",
    "runtime/*/*.py",
    "codegen/*/*.py",
)
"""What runs, and what times it."""

CallTimes = Mapping[str, Mapping[str, int]]
"""Nanoseconds by op and implementation."""


class StepCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was measured of one step."""

    calls: dict[str, dict[str, Count]]
    """Nanoseconds by op and implementation; an implementation that is not there loses to the op's own call."""
    unplanned: StepTimes
    """The whole step: forward and backward pass, packing of the gradients without sending them, optimizer."""


def with_step_costs(
    trace: Trace, parts: Sequence[JobPart], task: TrainingTask, world: int, say: Callable[[str], None], cache: CostCache
) -> tuple[Trace, StepTimes]:
    """`trace` with measured times of its calls on `world` processes, and the times of the whole step without plans.

    Workspaces stay those of `trace`. Raises InputError where a call of the step cannot run here, CheckFailed where a
    process fails.
    """
    here, changes = machine(world), " ".join(sorted(type(part).__name__ for part in parts))

    def measure() -> StepCosts:
        say(f"measure the step on {world} processes, once for this machine")
        return _measured(trace, parts, task, world)

    text = source_digest(*SOURCES)
    found = cache.get(StepCosts, (*here, text, changes, digest(trace)), measure)
    return timed(trace, found.calls, ", ".join(here[:2])), found.unplanned


def timed(trace: Trace, calls: CallTimes, device: str) -> Trace:
    """`trace` with these times, without the implementations that have none."""

    def with_times(op: Op) -> Op:
        times = calls[op.id]
        others = tuple(replace(other, time_ns=times[other.name]) for other in op.implementations if other.name in times)
        return replace(op, time_ns=times[OWN], implementations=others)

    return replace(trace, ops=tuple(map(with_times, trace.ops)), costs=Costs(model="measured", device=device))


def scaled(calls: CallTimes, factor: float) -> dict[str, dict[str, int]]:
    return {op: {name: round(ns * factor) for name, ns in times.items()} for op, times in calls.items()}


def _measured(trace: Trace, parts: Sequence[JobPart], task: TrainingTask, world: int) -> StepCosts:
    from treadle.runtime.launch import launch

    calls = launch(world, _call_times, (trace,))[0]
    cheapest = timed(trace, calls, "a process of the job")
    unplanned = [change for part in parts if (change := part.unplanned(cheapest)) is not None]
    changed = dataclasses.replace(task, parts=tuple(change.apply for change in unplanned))
    rounds = [MeasuredTraining(tuple(launch(world, _unplanned_times, (changed,)))) for _ in range(ROUNDS)]
    measured = min(rounds, key=lambda each: each.undisturbed_s(cores()))
    times = measured.step._replace(compute_s=measured.undisturbed_s(cores()))
    own = sum(each[OWN] for each in calls.values())
    predicted = next((change.compute_ns for change in unplanned if change.compute_ns is not None), own)
    return StepCosts(scaled(calls, times.compute_s * 1e9 / max(1, predicted)), times)


def _call_times(rank: int, world: int, trace: Trace) -> CallTimes:
    """The times of the calls on one rank, while the others measure the same."""
    import torch

    from treadle.capture.costs import with_measured_in_step

    torch.set_num_threads(1)
    measured = with_measured_in_step(trace)
    return {
        op.id: {OWN: op.time_ns or 0, **{other.name: other.time_ns or 0 for other in op.implementations}}
        for op in measured.ops
    }


def _unplanned_times(rank: int, world: int, task: TrainingTask) -> MeasuredRank:
    import torch

    torch.set_num_threads(1)
    step = planned_step(rank, world, task)
    return timed_steps(task, step)
