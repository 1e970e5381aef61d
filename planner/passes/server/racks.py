"""Several racks: a server in each as a shard of all, or sums within racks first and then between them."""

from __future__ import annotations

from treadle.planner.passes.server.decisions import RackSides
from treadle.planner.passes.server.problem import ServerProblem

NS_PER_MIB = (1 << 20) * 1e9


def rack_sides(problem: ServerProblem) -> RackSides | None:
    """Both sides of the inequality of section 5.3 of the paper, in ns per MiB of the model and one direction; None for
    one rack. Two levels pay where the flat side is greater."""
    if problem.racks == 1 or problem.core_rate is None:
        return None
    server_rate = sum(each.rate for each in problem.machine.interfaces)
    each, racks = problem.workers // problem.racks, problem.racks
    worker = 0.0 if problem.worker_rate is None else 1 / problem.worker_rate
    others = (racks - 1) / racks
    return RackSides(
        flat=NS_PER_MIB * each * others / problem.core_rate,
        two_level=NS_PER_MIB * (max(each / server_rate, worker) + others / min(server_rate, problem.core_rate)),
    )
