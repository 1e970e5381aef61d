"""Small problems of checkpoints in memory; the decisions of the first one are worked by hand."""

from __future__ import annotations

from functools import cache

from msgspec.structs import replace

from treadle.planner.passes.checkpoint.decisions import (
    CheckpointDecisions,
    OwnPiece,
    Placing,
    PolicyWaste,
    StatePiece,
    Survival,
)
from treadle.planner.passes.checkpoint.placement import published, ring
from treadle.planner.passes.checkpoint.problem import (
    VERSION,
    CheckpointProblem,
    IdleSpan,
    Persistent,
    Recovery,
    TrainingMessage,
    Variant,
)

PROBLEM = CheckpointProblem(
    version=VERSION,
    name="five machines",
    machines=5,
    copies=2,
    devices=1,
    state_bytes=12,
    iteration_ns=100,
    messages=(
        TrainingMessage(name="first", start_ns=20, end_ns=50),
        TrainingMessage(name="second", start_ns=60, end_ns=84),
    ),
    spans=(
        IdleSpan(after="begin", before="first", length_ns=20, spread_ns=1),
        IdleSpan(after="first", before="second", length_ns=10),
        IdleSpan(after="second", before="update", length_ns=16),
    ),
    fill_ppm=500_000,
    alpha_ns=1,
    link_rate=10**9,
    buffer_bytes=6,
    buffers=2,
)


def by_hand() -> CheckpointDecisions:
    """Three pieces in the first span, one in each of the others; one machine may be lost, or six pairs of ten."""
    pieces = ((0, 3), (0, 3), (0, 1), (1, 3), (2, 2))
    offsets = [sum(size for _, size in pieces[:number]) for number in range(len(pieces))]
    kept = ((5, 5), (6, 10), (0, 10), (0, 5))
    return CheckpointDecisions(
        problem=PROBLEM,
        placement="groups and ring",
        holders=((0, 1), (1, 0), (2, 3), (3, 4), (4, 2)),
        variant="planned",
        pieces=tuple(
            StatePiece(span=span, copy=1, offset=offset, bytes=size, buffer=number % 2)
            for number, ((span, size), offset) in enumerate(zip(pieces, offsets, strict=True))
        ),
        own=(OwnPiece(message=None, offset=0, bytes=12),),
        every=1,
        overflow_ns=0,
        checkpoint_ns=100,
        survival=tuple(
            Survival(lost=lost, of="machines", probability=good / sets, kept=good, sets=sets)
            for lost, (good, sets) in enumerate(kept, 1)
        ),
        waste=(
            PolicyWaste(
                policy="memory", checkpoint_ns=100, interval_ns=100, software_ns=150, hardware_ns=163, ratio=1.0
            ),
        ),
        host_bytes=48,
        time_ns=100,
    )


COPYING = replace(
    PROBLEM,
    name="copies to hosts",
    machines=6,
    devices=2,
    domains=(0, 0, 1, 1, 2, 2),
    copy_rate=200_000_000,
    failures_per_day=3e8,
    domain_ppm=250_000,
    persistent=Persistent(rate=10**8, interval_ns=5_000, serialize_rate=10**9),
    recovery=Recovery(detect_ns=20, replace_ns=40, restart_ns=30),
)
"""Six machines in three racks, with copies to hosts, frequent failures and storage; not all fits into an iteration."""


@cache
def decided_for(
    problem: CheckpointProblem = PROBLEM, placement: Placing | None = None, variant: Variant = "planned"
) -> CheckpointDecisions:
    """The planner's decisions with groups and a ring in the order of numbers, or with one ring."""
    from treadle.planner.passes.checkpoint.decided import decided  # imports scipy

    name, holders = published(problem.machines, problem.copies)
    if placement == "ring":
        holders = ring(problem.machines, problem.copies)
    return decided(problem, placement or name, holders, variant, None)
