"""Training with random failures, simulated one by one, next to the share of the time that plans predict."""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.checkpoint.papers import failing
from benchmarks.common import Row, Table
from treadle.planner.passes.checkpoint.decisions import PolicyWaste
from treadle.planner.passes.checkpoint.planning import plan_checkpoint
from treadle.planner.passes.checkpoint.problem import CheckpointProblem

DAY_NS = 86_400 * 10**9
DAYS = 3000
RATES = (1.0, 4.0, 8.0, 15.0, 60.0)


def tables() -> Iterator[Table]:
    """Share of the time that trains, by failures per day and policy: as planned, and with failures drawn at random."""
    yield Table("GPT-2 100B: share of the time that trains", [row for rate in RATES for row in shares(rate)], (LONG,))


LONG = (
    f"{DAYS:,} days; plans count a whole checkpoint and half an interval for each failure, also where the next failure "
    "comes sooner"
)


def shares(per_day: float) -> Iterator[Row]:
    """Each policy at a rate of failures of the job."""
    problem = failing(per_day)
    for policy in plan_checkpoint(problem).decisions.waste:
        found = simulated(problem, policy, DAYS)
        yield {"failures per day": per_day, "policy": policy.policy, "planned": policy.ratio, "simulated": found}


def simulated(problem: CheckpointProblem, policy: PolicyWaste, days: int, seed: int = 0) -> float:
    """The share of the time that trains, for failures of processes that are alike likely at any time.

    What was trained before the newest complete checkpoint began counts. A checkpoint begins after each interval.
    """
    chance = random.Random(seed)
    end, now, trained = days * DAY_NS, 0.0, 0.0
    half = policy.interval_ns // 2
    loading = policy.software_ns - policy.checkpoint_ns - half
    overhead = problem.recovery.detect_ns + problem.recovery.restart_ns
    while now < end:
        runs = chance.expovariate(problem.failures_per_day / DAY_NS)
        begun = max(0, (runs - policy.checkpoint_ns) // policy.interval_ns)
        trained += begun * policy.interval_ns
        now += runs + loading + overhead
    return trained / now * (1 - stopped_ns(problem, policy) / policy.interval_ns)


def stopped_ns(problem: CheckpointProblem, policy: PolicyWaste) -> float:
    """How long a checkpoint on storage stops the training."""
    storage = problem.persistent
    if policy.policy == "memory" or storage is None or storage.serialize_rate is None:
        return 0.0
    return problem.devices * problem.state_bytes * 1e9 / storage.serialize_rate
