"""Plans of checkpoints with the holders that a test names; what they predict is of no interest here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from treadle.planner.documents.plan import Certificate, Plan, Prediction, Provenance
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions, OwnPiece, StatePiece
from treadle.planner.passes.checkpoint.problem import (
    VERSION,
    CheckpointProblem,
    IdleSpan,
    Persistent,
    TrainingMessage,
)

PAIRS = ((0, 1), (1, 0), (2, 3), (3, 2))
PAIR_AND_RING = ((0, 1), (1, 0), (2, 3), (3, 4), (4, 2))
RING = ((0, 1), (1, 2), (2, 3), (3, 4), (4, 0))
PROBLEM = CheckpointProblem(
    version=VERSION,
    name="three layers",
    machines=4,
    copies=2,
    devices=2,
    state_bytes=1000,
    iteration_ns=100_000,
    messages=(
        TrainingMessage(name="gather", start_ns=10_000, end_ns=30_000),
        TrainingMessage(name="scatter", start_ns=50_000, end_ns=80_000),
    ),
    spans=(
        IdleSpan(after="begin", before="gather", length_ns=10_000),
        IdleSpan(after="gather", before="scatter", length_ns=20_000),
        IdleSpan(after="scatter", before="update", length_ns=20_000),
    ),
    alpha_ns=1000,
    link_rate=10**8,
    copy_rate=2 * 10**8,
    buffer_bytes=1024,
    buffers=4,
    failures_per_day=4.0,
    persistent=Persistent(rate=10**9, interval_ns=10**9),
)
PIECES = ((0, 256), (1, 256), (1, 256), (2, 232))
"""Span and bytes of the pieces of the first copy; those of others are in the last span."""


def decided(holders: Sequence[Sequence[int]] = PAIRS, **changes: Any) -> CheckpointDecisions:
    """Decisions of a job with these holders; `changes` are of its problem."""
    copies = len(holders[0])
    problem = replace(PROBLEM, **{"machines": len(holders), "copies": copies, **changes})
    offsets = [sum(size for _, size in PIECES[:place]) for place in range(len(PIECES))]
    pieces = [
        (copy, span if copy == 1 else 2, offset, size)
        for copy in range(1, copies)
        for (span, size), offset in zip(PIECES, offsets, strict=True)
    ]
    return CheckpointDecisions(
        problem=problem,
        placement="groups",
        holders=tuple(map(tuple, holders)),
        variant="planned",
        pieces=tuple(
            StatePiece(span=span, copy=copy, offset=offset, bytes=size, buffer=place % problem.buffers)
            for place, (copy, span, offset, size) in enumerate(pieces)
        ),
        own=(
            OwnPiece(message=0, offset=0, bytes=256),
            OwnPiece(message=1, offset=256, bytes=256),
            OwnPiece(message=None, offset=512, bytes=488),
        ),
        every=1,
        overflow_ns=0,
        checkpoint_ns=100_000,
        survival=(),
        waste=(),
        host_bytes=2 * copies * problem.devices * problem.state_bytes,
        time_ns=100_000,
    )


def plan_of(decisions: CheckpointDecisions) -> Plan[CheckpointDecisions]:
    time = float(decisions.time_ns)
    return Plan(
        version=1,
        decisions=decisions,
        prediction=Prediction(time_us=time / 1000),
        certificate=Certificate(
            verdict="accepted",
            checker="checkpoint",
            objective=time,
            lower_bound=time,
            unit="ns",
            argument="nothing is below an iteration",
            gap=0.0,
            optimal=True,
        ),
        provenance=Provenance(tool="treadle", method="test"),
    )
