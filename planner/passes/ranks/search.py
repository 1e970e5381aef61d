"""The cheapest order of hosts, and the dearest one, by local search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import numpy as np

from treadle.planner.passes.ranks.anneal import Floats, Ints, anneal
from treadle.planner.passes.ranks.cost import OrderCosts
from treadle.planner.passes.ranks.tours import Tours

RINGS = ("ring", "nccl-ring")
KICKS_PER_HOST = 40
MOVES_PER_HOST = 500
OFTEN = 16
"""Kicks of a tour between two looks at the clock."""
Offer = Callable[[Sequence[int]], None]


def best_order(costs: OrderCosts, seed: int, offer: Offer, stopped: Callable[[], bool]) -> None:
    """Offer ever cheaper orders."""
    _search(costs, seed, offer, stopped, 1)


def worst_order(costs: OrderCosts, seed: int, offer: Offer, stopped: Callable[[], bool]) -> None:
    """Offer ever dearer orders, with a tenth of the work of `best_order`."""
    _search(costs, seed, offer, stopped, -1)


def _search(costs: OrderCosts, seed: int, offer: Offer, stopped: Callable[[], bool], sign: int) -> None:
    count, share = len(costs.latency), 1 if sign == 1 else 10
    if costs.problem.algorithm in RINGS and costs.problem.objective != "bottleneck" and count >= 5:
        matrix = costs.matrix(0)
        tours = Tours(matrix if sign == 1 else matrix.max() - matrix, range(count))
        offer(tours.order)
        shortest = tours.length
        for kick, length in enumerate(tours.chain(KICKS_PER_HOST * count // share, Random(seed))):
            if length < shortest:
                shortest = length
                offer(tours.order)
            if kick % OFTEN == 0 and stopped():
                return
        return

    def energies(orders: Ints) -> Floats:
        hops = costs.hop_costs(orders, costs.problem.objective)
        energy: Floats = sign * (costs.combined(hops) + hops.mean(axis=1))
        return energy

    generator = np.random.default_rng(seed)
    offer(anneal(energies, range(count), MOVES_PER_HOST * count // share, generator, stopped).order.tolist())
