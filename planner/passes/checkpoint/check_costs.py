"""What checkpoints and failures cost, counted again for the checker: memory, times, waste of policies.

Shares are fractions of whole numbers, so that only ratios, which a plan has as floats, are compared with a tolerance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from math import ceil

from treadle.planner.passes.checkpoint.check_own import own_late_ns
from treadle.planner.passes.checkpoint.check_pieces import SECOND, ceiling, sent_late_ns
from treadle.planner.passes.checkpoint.check_placement import Finding
from treadle.planner.passes.checkpoint.check_survival import kept_domains, kept_machines
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions, PolicyWaste
from treadle.planner.passes.checkpoint.problem import CheckpointProblem

DAY_NS = 86_400 * SECOND
PARTS = 10**6
ROUNDING = 1e-12


def cost_findings(decisions: CheckpointDecisions) -> Iterator[Finding]:
    """Figures that are not those of the pieces, the placement and the problem."""
    problem, path = decisions.problem, "$.decisions"
    fullest = max(Counter(machine for held in decisions.holders for machine in held).values())
    memory = 2 * fullest * problem.devices * problem.state_bytes
    if decisions.host_bytes != memory:
        yield f"{path}.host_bytes", decisions.host_bytes, f"{memory}, two versions of {fullest} states"
    elif problem.host_bytes is not None and memory > problem.host_bytes:
        yield f"{path}.host_bytes", memory, f"at most {problem.host_bytes}, the memory for checkpoints"
    late = max(sent_late_ns(decisions), own_late_ns(decisions))
    for name, right in (("overflow_ns", late), ("checkpoint_ns", problem.iteration_ns + late)):
        if getattr(decisions, name) != right:
            yield f"{path}.{name}", getattr(decisions, name), right
    yield from _waste(decisions, late)


def _waste(decisions: CheckpointDecisions, late: int) -> Iterator[Finding]:
    problem, path = decisions.problem, "$.decisions.waste"
    expected = [memory_waste(problem, late, decisions.every, _survives(decisions))]
    if problem.persistent is not None:
        expected += [_stored(problem, often) for often in (False, True)]
    if [each.policy for each in decisions.waste] != [each.policy for each in expected]:
        seen = ", ".join(each.policy for each in decisions.waste)
        yield path, seen or "no policies", ", ".join(each.policy for each in expected)
        return
    for place, (stated, right) in enumerate(zip(decisions.waste, expected, strict=True)):
        for name in ("checkpoint_ns", "interval_ns", "software_ns", "hardware_ns"):
            if getattr(stated, name) != getattr(right, name):
                yield f"{path}[{place}].{name}", getattr(stated, name), getattr(right, name)
        if abs(stated.ratio - right.ratio) > ROUNDING:
            yield f"{path}[{place}].ratio", stated.ratio, right.ratio
    time = ceil(exact_time(problem, late, decisions.every, expected[0]))
    if decisions.time_ns != time:
        yield "$.decisions.time_ns", decisions.time_ns, time


def memory_waste(problem: CheckpointProblem, late: int, every: int, survives: Fraction) -> PolicyWaste:
    """Checkpoints in memory; a failure that leaves no copy of some state costs what it does with storage, if any."""
    once, apart = problem.iteration_ns + late, every * problem.iteration_ns + late
    software = once + apart // 2
    hardware = software + problem.alpha_ns + ceiling(problem.state_bytes * SECOND, problem.link_rate)
    if problem.persistent is not None:
        stored, sets = _stored(problem, often=False).hardware_ns, survives.denominator
        hardware = (survives.numerator * hardware + (sets - survives.numerator) * stored) // sets
    return _priced(problem, PolicyWaste(
        policy="memory", checkpoint_ns=once, interval_ns=apart, software_ns=software, hardware_ns=hardware, ratio=0.0,
    ), late)  # fmt: skip


def _stored(problem: CheckpointProblem, often: bool) -> PolicyWaste:
    """Checkpoints on storage, at the user's interval or one after the other in whole iterations."""
    assert problem.persistent is not None
    own, storage = problem.devices * problem.state_bytes, problem.persistent
    once = ceiling(problem.machines * own * SECOND, storage.rate)
    apart = max(once, storage.interval_ns)
    if often:
        apart = ceiling(once, problem.iteration_ns) * problem.iteration_ns
    wasted = 2 * once + apart // 2
    stopped = ceiling(own * SECOND, storage.serialize_rate) if storage.serialize_rate else 0
    return _priced(problem, PolicyWaste(
        policy="persistent, often" if often else "persistent",
        checkpoint_ns=once, interval_ns=apart, software_ns=wasted, hardware_ns=wasted, ratio=0.0,
    ), stopped)  # fmt: skip


def _priced(problem: CheckpointProblem, waste: PolicyWaste, stopped: int) -> PolicyWaste:
    """The policy with the share of the time that trains; for each checkpoint training stands still for `stopped`."""
    recovery = problem.recovery
    again = recovery.detect_ns + recovery.restart_ns
    absent = again if recovery.standby else again + recovery.replace_ns
    failing = failures_per_ns(problem) * _mean(problem, waste.software_ns + again, waste.hardware_ns + absent)
    working = Fraction(waste.interval_ns - stopped, waste.interval_ns)
    return PolicyWaste(
        policy=waste.policy,
        checkpoint_ns=waste.checkpoint_ns,
        interval_ns=waste.interval_ns,
        software_ns=waste.software_ns,
        hardware_ns=waste.hardware_ns,
        ratio=float(max(Fraction(0), 1 - failing) * max(Fraction(0), working)),
    )


def exact_time(problem: CheckpointProblem, late: int, every: int, memory: PolicyWaste) -> Fraction:
    """ns of an iteration with its share of checkpoints and of what failures waste."""
    wasted = failures_per_ns(problem) * _mean(problem, memory.software_ns, memory.hardware_ns)
    return problem.iteration_ns * (1 + wasted) + Fraction(late, every)


def _survives(decisions: CheckpointDecisions) -> Fraction:
    """How likely a failure of hardware leaves a copy of every state."""
    problem = decisions.problem
    kept = Fraction(kept_machines(decisions.holders)[0], problem.machines)
    if not problem.domains:
        return kept
    domain = Fraction(kept_domains(decisions.holders, problem.domains)[0], len({*problem.domains}))
    return kept + (domain - kept) * Fraction(problem.domain_ppm, PARTS)


def _mean(problem: CheckpointProblem, software: int, hardware: int) -> Fraction:
    share = problem.hardware_ppm
    return Fraction((PARTS - share) * software + share * hardware, PARTS)


def failures_per_ns(problem: CheckpointProblem) -> Fraction:
    return Fraction(problem.failures_per_day) / DAY_NS
