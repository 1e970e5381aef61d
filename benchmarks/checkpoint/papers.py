"""The clusters and models that "GEMINI: Fast Failure Recovery in Distributed Training with In-Memory Checkpoints" is
evaluated with, as problems."""

from __future__ import annotations

from msgspec.structs import replace

from treadle.planner.passes.checkpoint.problem import (
    VERSION,
    CheckpointProblem,
    IdleSpan,
    Persistent,
    Recovery,
    TrainingMessage,
)

SECOND = 10**9
GIGABIT = 10**9 // 8
GPT2_100B = CheckpointProblem(
    version=VERSION,
    name="GPT-2 100B on 16 p4d.24xlarge",
    machines=16,
    copies=2,
    devices=8,
    state_bytes=9_400_000_000,
    iteration_ns=62 * SECOND,
    spans=(IdleSpan(after="begin", before="update", length_ns=3 * SECOND),),
    alpha_ns=0,
    link_rate=400 * GIGABIT // 8,
    copy_rate=400 * GIGABIT // 8,
    failures_per_day=8.0,
    hardware_ppm=0,
    persistent=Persistent(rate=20 * GIGABIT, interval_ns=3 * 3600 * SECOND, serialize_rate=8 * 9_400_000_000 // 81),
    recovery=Recovery(detect_ns=15 * SECOND, restart_ns=405 * SECOND, standby=1),
)
"""Detection, serialising and warming up are 420 s; less than 3 s of an iteration are a checkpoint."""
ITERATION_NS = 23_760_000_000
"""As long as makes that of `blocking` 10.1 % longer."""
IDLE_NS = (1_600_000_000, 800_000_000, 800_000_000, 770_000_000)
"""The first span is the published longest one; together they make an iteration without a pipeline 3.5 % longer."""
BUSY_NS = (ITERATION_NS - sum(IDLE_NS)) // (len(IDLE_NS) - 1)
BEGINS = [sum(IDLE_NS[: number + 1]) + number * BUSY_NS for number in range(len(IDLE_NS) - 1)]
MESSAGES = tuple(
    TrainingMessage(name=f"message {number}", start_ns=begin, end_ns=begin + BUSY_NS)
    for number, begin in enumerate(BEGINS)
)
NAMES = ("begin", *(message.name for message in MESSAGES), "update")
GPT2_40B = CheckpointProblem(
    version=VERSION,
    name="GPT-2 40B on 16 p3dn.24xlarge",
    machines=16,
    copies=2,
    devices=8,
    state_bytes=3_750_000_000,
    iteration_ns=ITERATION_NS,
    messages=MESSAGES,
    spans=tuple(
        IdleSpan(after=after, before=before, length_ns=length)
        for after, before, length in zip(NAMES, NAMES[1:], IDLE_NS, strict=False)
    ),
    fill_ppm=1_000_000,
    alpha_ns=0,
    link_rate=100 * GIGABIT // 8,
    copy_rate=100 * GIGABIT // 8,
)


def failing(per_day: float) -> CheckpointProblem:
    """The simulated training with so many failures of the job per day."""
    return replace(GPT2_100B, failures_per_day=per_day)
