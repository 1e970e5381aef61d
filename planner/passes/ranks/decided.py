"""What given orders come to, as the decisions of a plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treadle.planner.passes.ranks.cost import OrderCosts
from treadle.planner.passes.ranks.decisions import RanksDecisions
from treadle.planner.passes.ranks.problem import RanksProblem
from treadle.planner.passes.ranks.samples import random_orders


def decided(problem: RanksProblem, order: Sequence[int], worst: Sequence[int]) -> RanksDecisions:
    """The decisions for `order`, next to `worst`, with the costs of both and of others under `problem`."""
    costs, count = OrderCosts(problem), len(problem.hosts)
    own = costs.of(order)
    sampled = np.sort(costs.many(np.array(random_orders(count)))[0])
    return RanksDecisions(
        problem=problem,
        order=tuple(order),
        cost_ns=own.cost_ns,
        tie_ns=own.tie_ns,
        original_ns=costs.of(range(count)).cost_ns,
        median_ns=int(sampled[len(sampled) // 2]),
        worst=tuple(worst),
        worst_ns=costs.of(worst).cost_ns,
        time_ns=costs.time_ns(order),
    )
