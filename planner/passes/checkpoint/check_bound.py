"""The interval that costs least and the time that no plan is below, derived again for the checker."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import ceil

from treadle.planner.passes.checkpoint.check_costs import PARTS, exact_time, failures_per_ns, memory_waste
from treadle.planner.passes.checkpoint.check_pieces import SECOND, ceiling
from treadle.planner.passes.checkpoint.check_placement import Finding
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
from treadle.planner.passes.checkpoint.problem import CheckpointProblem

LONGEST_NS = 2**61
"""No interval is longer."""


def interval_findings(decisions: CheckpointDecisions) -> Iterator[Finding]:
    """Another interval than the one that costs least, which plans have whose interval was not given."""
    best = best_interval(decisions.problem, decisions.overflow_ns)
    if decisions.every != best:
        yield "$.decisions.every", decisions.every, f"{best} iterations, which cost least"


def best_interval(problem: CheckpointProblem, overflow: int) -> int:
    """The first number of iterations that the next one does not better, by halving: the cost is convex."""
    often, period = failures_per_ns(problem), problem.iteration_ns
    if not overflow or not often:
        return 1

    def cost(every: int) -> Fraction:
        return Fraction(overflow, every) + often * every * period * period / 2

    low, high = 1, max(1, LONGEST_NS // period)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if cost(middle + 1) >= cost(middle) else (middle + 1, high)
    return low


def least_time_ns(problem: CheckpointProblem) -> int:
    """What no plan is below: the links take all bytes in pieces as large as buffers, a failure always leaves a copy."""
    late, often = _least_late(problem), failures_per_ns(problem)
    if late and not often:
        return problem.iteration_ns  # checkpoints may be as far apart as one likes
    every = best_interval(problem, late)
    rounded = often * problem.iteration_ns / 2 if late else 0  # half of a longer interval may lose half a ns
    kinds = [memory_waste(problem, late, every, Fraction(share)) for share in (0, 1)]
    return ceil(min(exact_time(problem, late, every, waste) for waste in kinds) - rounded)


def _least_late(problem: CheckpointProblem) -> int:
    state, copy_rate = problem.state_bytes, problem.copy_rate
    latencies = problem.alpha_ns * ceiling(state, problem.buffer_bytes)
    each = latencies + ceiling(state * SECOND, problem.link_rate)
    if copy_rate is not None:
        each = max(each, ceiling(state * SECOND, copy_rate))
    room = problem.spans[-1].length_ns
    for span in problem.spans[:-1]:
        filled = problem.fill_ppm * span.length_ns // PARTS
        room += filled if filled > problem.alpha_ns else 0
    return max(0, (problem.copies - 1) * each - room, _least_own(problem))


def _least_own(problem: CheckpointProblem) -> int:
    """What remains of a state's own copy when all messages are over, past the last span."""
    if problem.copy_rate is None:
        return 0
    covered = sum((each.end_ns - each.start_ns) * problem.copy_rate // SECOND for each in problem.messages)
    rest = max(0, problem.state_bytes - covered)
    return max(0, ceiling(rest * SECOND, problem.copy_rate) - problem.spans[-1].length_ns)
