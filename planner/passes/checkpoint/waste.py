"""What failures waste with checkpoints in memory and with two policies on storage, and which share of the time trains.

A failure wastes a checkpoint that is not complete, half an interval in the mean, and the time to load (GEMINI's wasted
time). `persistent` writes at the user's interval, or one checkpoint after the other if they take longer; `persistent,
often` always the latter, rounded up to whole iterations.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from treadle.planner.passes.checkpoint.decisions import Policy, PolicyWaste, Survival
from treadle.planner.passes.checkpoint.interval import failures_per_ns
from treadle.planner.passes.checkpoint.partition import transfer_ns
from treadle.planner.passes.checkpoint.problem import CheckpointProblem, Persistent

MILLION = 1_000_000


def survives(problem: CheckpointProblem, survival: Iterable[Survival]) -> Fraction:
    """How likely a hardware failure, of a machine or of a failure domain, leaves a copy of every state."""
    share = {found.of: Fraction(found.kept or 0, found.sets or 1) for found in survival if found.lost == 1}
    domains = Fraction(problem.domain_ppm, MILLION) if "domains" in share else Fraction(0)
    return (1 - domains) * share["machines"] + domains * share.get("domains", 0)


def wasted(problem: CheckpointProblem, overflow_ns: int, every: int, kept: Fraction) -> tuple[PolicyWaste, ...]:
    """The cost of each policy. kept: how likely a hardware failure leaves a copy of every state."""
    memory = in_memory(problem, overflow_ns, every, kept)
    if problem.persistent is None:
        return (memory,)
    return memory, *(on_storage(problem, problem.persistent, often=often) for often in (False, True))


def in_memory(problem: CheckpointProblem, overflow_ns: int, every: int, kept: Fraction) -> PolicyWaste:
    """Checkpoints in memory. Where no copy is left, all machines load what storage has; without storage the time of a
    failure in memory stands for it."""
    checkpoint = problem.iteration_ns + overflow_ns
    interval = every * problem.iteration_ns + overflow_ns
    software = checkpoint + interval // 2
    hardware = software + problem.alpha_ns + transfer_ns(problem.state_bytes, problem.link_rate)
    if problem.persistent is not None:
        stored = on_storage(problem, problem.persistent, often=False).hardware_ns
        hardware = int(kept * hardware + (1 - kept) * stored)
    return _policy(problem, "memory", checkpoint, interval, (software, hardware), overflow_ns)


def on_storage(problem: CheckpointProblem, storage: Persistent, *, often: bool) -> PolicyWaste:
    """Checkpoints of all machines on storage."""
    state = problem.devices * problem.state_bytes
    checkpoint = transfer_ns(problem.machines * state, storage.rate)
    iterations = -(-checkpoint // problem.iteration_ns)
    interval = iterations * problem.iteration_ns if often else max(storage.interval_ns, checkpoint)
    lost = checkpoint + interval // 2 + checkpoint
    serialize = transfer_ns(state, storage.serialize_rate) if storage.serialize_rate else 0
    return _policy(
        problem, "persistent, often" if often else "persistent", checkpoint, interval, (lost, lost), serialize
    )


def _policy(
    problem: CheckpointProblem, policy: Policy, checkpoint: int, interval: int, lost: tuple[int, int], stopped: int
) -> PolicyWaste:
    """stopped: how long training stands still for each checkpoint."""
    recovery = problem.recovery
    overhead = recovery.detect_ns + recovery.restart_ns
    replaced = overhead + (0 if recovery.standby else recovery.replace_ns)
    failed = failures_per_ns(problem) * mean(problem, lost[0] + overhead, lost[1] + replaced)
    ratio = max(Fraction(0), 1 - failed) * max(Fraction(0), 1 - Fraction(stopped, interval))
    return PolicyWaste(
        policy=policy,
        checkpoint_ns=checkpoint,
        interval_ns=interval,
        software_ns=lost[0],
        hardware_ns=lost[1],
        ratio=float(ratio),
    )


def mean(problem: CheckpointProblem, software: int, hardware: int) -> Fraction:
    """The mean of both kinds of failures."""
    return software + Fraction(problem.hardware_ppm, MILLION) * (hardware - software)


def iteration_time(problem: CheckpointProblem, overflow_ns: int, every: int, memory: PolicyWaste) -> Fraction:
    """An iteration with its share of checkpoints and of what failures waste, in ns."""
    lost = failures_per_ns(problem) * mean(problem, memory.software_ns, memory.hardware_ns)
    return problem.iteration_ns + Fraction(overflow_ns, every) + lost * problem.iteration_ns
