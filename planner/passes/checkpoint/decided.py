"""A problem and a placement as decisions: pieces, interval, survival, waste and memory."""

from __future__ import annotations

from math import ceil

from treadle.planner.documents.scalars import format_bytes, many
from treadle.planner.errors import InfeasibleError
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions, Placing
from treadle.planner.passes.checkpoint.interval import best_every
from treadle.planner.passes.checkpoint.own import own_late_ns, own_pieces
from treadle.planner.passes.checkpoint.partition import partition, pieces_late_ns
from treadle.planner.passes.checkpoint.placement import Holders
from treadle.planner.passes.checkpoint.problem import CheckpointProblem, Variant
from treadle.planner.passes.checkpoint.survival import survival
from treadle.planner.passes.checkpoint.waste import iteration_time, survives, wasted

HALVES = 2
"""A version that is complete and one that arrives."""


def decided(
    problem: CheckpointProblem, placement: Placing, holders: Holders, variant: Variant, every: int | None
) -> CheckpointDecisions:
    """The decisions with these holders. every: iterations between checkpoints, None for the interval that loses least.

    Raises InfeasibleError where the memory of hosts or, for `naive`, of buffers is too small.
    """
    host_bytes = host_memory(problem)
    pieces, own = partition(problem, variant), own_pieces(problem)
    overflow = max(pieces_late_ns(problem, pieces, variant), own_late_ns(problem, own))
    interval = every or best_every(problem, overflow)
    survived = survival(problem, holders)
    waste = wasted(problem, overflow, interval, survives(problem, survived))
    return CheckpointDecisions(
        problem=problem,
        placement=placement,
        holders=holders,
        variant=variant,
        pieces=pieces,
        own=own,
        every=interval,
        overflow_ns=overflow,
        checkpoint_ns=problem.iteration_ns + overflow,
        survival=survived,
        waste=waste,
        host_bytes=host_bytes,
        time_ns=ceil(iteration_time(problem, overflow, interval, waste[0])),
    )


def host_memory(problem: CheckpointProblem) -> int:
    """Bytes of every machine, which holds as many states as there are copies of each. Raises InfeasibleError for more
    than it may take, with the number of copies that fit."""
    state = HALVES * problem.devices * problem.state_bytes
    need, most = problem.copies * state, problem.host_bytes
    if most is not None and need > most:
        fit = min(problem.copies, most // state)
        fewer = f"{many(fit, 'copy' if fit == 1 else 'copie')} would fit" if fit else "not even its own would fit"
        raise InfeasibleError(
            f"{problem.name}: {problem.copies} copies of every state, each twice, need {format_bytes(need)} of each "
            f"machine, which has {format_bytes(most)}; {fewer}"
        )
    return need
