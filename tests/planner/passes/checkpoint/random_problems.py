"""Random problems of checkpoints in memory: every variant and placement, rates and limits that are known or not."""

from __future__ import annotations

import random

from treadle.planner.passes.checkpoint.decisions import Placing
from treadle.planner.passes.checkpoint.planning import CheckpointOptions
from treadle.planner.passes.checkpoint.problem import (
    VERSION,
    CheckpointProblem,
    IdleSpan,
    Persistent,
    Recovery,
    TrainingMessage,
)

RATES = (10**9, 12 * 10**8, 6_250_000_000, 333_333_333, 7)


def random_problem(rng: random.Random) -> CheckpointProblem:
    """A sound problem of few machines and small states."""
    machines = rng.randint(1, 12)
    state = rng.choice((1, 12, rng.randint(1, 500), rng.randint(1, 10**6)))
    buffers = rng.randint(1, 4)
    iteration, messages, spans = _iteration(rng, rng.choice((100, 10**4, 10**9)))
    return CheckpointProblem(
        version=VERSION,
        name="random",
        machines=machines,
        copies=rng.randint(1, min(machines, 4)),
        devices=rng.randint(1, 3),
        state_bytes=state,
        domains=tuple(rng.randrange(4) for _ in range(machines)) if rng.random() < 0.5 else (),
        iteration_ns=iteration,
        messages=messages,
        spans=spans,
        fill_ppm=rng.choice((1_000_000, 900_000, 333_333, 1)),
        alpha_ns=rng.choice((0, 1, rng.randint(0, 50), rng.randint(0, 10**5))),
        link_rate=rng.choice(RATES),
        copy_rate=rng.choice((None, *RATES)),
        buffer_bytes=buffers * max(1, state // rng.randint(1, 40)) + rng.randrange(buffers),
        buffers=buffers,
        failures_per_day=rng.choice((0.0, 1.5, rng.random() * 10, 1e6 * rng.random())),
        hardware_ppm=rng.choice((0, 500_000, 1_000_000, rng.randrange(10**6))),
        domain_ppm=rng.choice((0, rng.randrange(10**6))),
        persistent=_persistent(rng),
        recovery=rng.choice((Recovery(), Recovery(detect_ns=rng.randint(0, 10**9), standby=rng.randint(0, 2)))),
    )


def random_options(rng: random.Random, problem: CheckpointProblem) -> CheckpointOptions:
    """A placement that is possible, a variant and an interval, or what the planner decides itself."""
    fitting: list[Placing] = ["ring", "groups and ring" if problem.machines % problem.copies else "groups"]
    searching = rng.random() < 0.1  # takes most of the time
    return CheckpointOptions(
        placement=rng.choice((None, "searched") if searching else fitting),
        variant=rng.choice(("planned", "planned", "no-pipeline", "blocking", "naive")),
        every=rng.choice((None, None, rng.randint(1, 100))),
    )


def _iteration(rng: random.Random, scale: int) -> tuple[int, tuple[TrainingMessage, ...], tuple[IdleSpan, ...]]:
    """An iteration in ns, messages one after the other, and the spans between them."""
    now, messages, spans, before = 0, [], [], "begin"
    for number in range(rng.randint(0, 4)):
        idle = rng.choice((0, rng.randint(0, scale)))
        start, end = now + idle, now + idle + rng.choice((0, rng.randint(0, scale)))
        messages.append(TrainingMessage(name=f"allreduce {number}", start_ns=start, end_ns=end))
        spans.append(IdleSpan(after=before, before=messages[-1].name, length_ns=idle))
        now, before = end, messages[-1].name
    last = rng.choice((0, rng.randint(0, scale)))
    spans.append(IdleSpan(after=before, before="update", length_ns=last))
    update = rng.choice((0, rng.randint(0, scale)))
    return max(1, now + last + update), tuple(messages), tuple(spans)


def _persistent(rng: random.Random) -> Persistent | None:
    if rng.random() < 0.4:
        return None
    return Persistent(
        rate=rng.choice(RATES),
        interval_ns=rng.randint(1, 10**13),
        serialize_rate=rng.choice((None, rng.choice(RATES))),
    )
