"""Programs found in the trace of a step, so that the gain of fusion is known without writing one."""

from __future__ import annotations

from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.find.matches import Match, NoMatch
from treadle.planner.passes.fusion.find.optimizers import gradient_steps
from treadle.planner.passes.fusion.find.tails import tails

__all__ = ["Found", "Passed", "find"]


def find(
    trace: Trace, *, tensor_ranks: int, optimizer: str | None = None
) -> tuple[tuple[Match, ...], tuple[NoMatch, ...]]:
    """Every pattern in `trace`, and places that resemble one but do not match, with the reason.

    tensor_ranks: how many ranks share a layer; 1 leaves out the tails of tensor parallelism. optimizer: sgd, adam or
    lamb, by default the one in the trace, else adam. Raises InputError for a trace without any match.
    """
    steps, none = gradient_steps(trace, optimizer)
    ends, passed = tails(trace, tensor_ranks)
    if not steps and not ends:
        reasons = (*none, *passed)
        why = f": {reasons[0].what}: {reasons[0].why}" if reasons else ""
        raise InputError(f"found neither gradients nor layers that end in a residual sum in trace {trace.name!r}{why}")
    return (*steps, *ends), (*none, *passed)
