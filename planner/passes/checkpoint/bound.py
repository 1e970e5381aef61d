"""Lower bounds: an iteration, what its spans cannot take of a checkpoint, and what failures waste at best.

What is sent takes the link for its bytes and a latency for each piece as large as a whole buffer, or else for the
copies out of the buffers. Spans before the last one take what may be filled of them, if that is more than a latency,
and the last one its length. A failure wastes an iteration, half an interval, and where a machine is lost a transfer or,
if less, what storage takes. The interval is the one with the least sum.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from treadle.planner.documents.scalars import format_time
from treadle.planner.passes.checkpoint.decisions import PolicyWaste
from treadle.planner.passes.checkpoint.interval import failures_per_ns, least_every
from treadle.planner.passes.checkpoint.own import own_late_ns, own_pieces
from treadle.planner.passes.checkpoint.partition import copy_ns, transfer_ns
from treadle.planner.passes.checkpoint.problem import CheckpointProblem
from treadle.planner.passes.checkpoint.waste import in_memory, iteration_time, on_storage
from treadle.planner.search.bound import Argument, Bound

WASTED = "what failures waste where a copy of every state is left"
SENTENCES = {
    "idle": f"an iteration, whose idle spans take all that is sent, and {WASTED}",
    "late": (
        "an iteration, the {overflow} by which it is longer at least, since idle spans take no more of the bytes that "
        f"are sent, once in {{every}} iterations, and {WASTED}"
    ),
    "rare": "an iteration: without failures, checkpoints may be as far apart as one likes",
}


def sentence(bound: Bound) -> str:
    """Why `bound` holds, in words."""
    return bound.argument.printed(SENTENCES)


def lower_bound(problem: CheckpointProblem) -> Bound:
    """No plan takes less for an iteration with its share of checkpoints and of what failures waste."""
    overflow, rate = least_overflow_ns(problem), failures_per_ns(problem)
    if overflow and not rate:
        return Bound(problem.iteration_ns, Argument("rare"))
    every = least_every(problem, overflow)
    time = iteration_time(problem, overflow, every, _least_wasted(problem, overflow, every))
    if not overflow:
        return Bound(ceil(time), Argument("idle"))
    time -= rate * problem.iteration_ns / 2  # half an interval is rounded down in plans, of a longer one by more
    return Bound(ceil(time), Argument("late", facts={"overflow": format_time(overflow), "every": every}))


def least_overflow_ns(problem: CheckpointProblem) -> int:
    """By how much an iteration with a checkpoint is longer at least."""
    whole = problem.state_bytes
    latencies = -(-whole // problem.buffer_bytes) * problem.alpha_ns
    sent = max(latencies + transfer_ns(whole, problem.link_rate), copy_ns(problem, whole))
    budgets = (problem.fill_ppm * span.length_ns // 10**6 for span in problem.spans[:-1])
    taken = sum(budget for budget in budgets if budget > problem.alpha_ns) + problem.spans[-1].length_ns
    return max(0, (problem.copies - 1) * sent - taken, own_late_ns(problem, own_pieces(problem)))


def _least_wasted(problem: CheckpointProblem, overflow: int, every: int) -> PolicyWaste:
    memory = in_memory(problem, overflow, every, Fraction(1))
    if problem.persistent is None:
        return memory
    stored = on_storage(problem, problem.persistent, often=False).hardware_ns
    return memory if memory.hardware_ns <= stored else in_memory(problem, overflow, every, Fraction(0))
