"""The section of a job file on checkpoints in memory."""

from __future__ import annotations

from treadle.planner.documents.scalars import Amount, Positive, Record


class CheckpointJob(Record, frozen=True, kw_only=True):
    """Every machine's state is kept in the memory of others, sent while the job's own messages leave the links idle."""

    copies: Positive = 2
    """How many machines hold each state, its own among them."""
    failures_per_day: Amount | None = None
    """Failures of the whole job; None for what the number of machines leads to expect."""
    state_bytes: Positive | None = None
    """What a device holds; None for its parameters and buffers, and the states of an optimizer that is in the trace."""
