"""The cheapest order of hosts, and the dearest one, by local search.

A short ring passes through each rack once, so it is a start for every algorithm: at the rotation that costs least. Then
chained Lin-Kernighan steps for rings, exchanges for patterns of rounds, and all moves of `anneal` for trees and plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import numpy as np

from treadle.planner.machine.near_hosts import near_hosts
from treadle.planner.passes.ranks.anneal import Floats, Heat, Ints, anneal, anneal_rounds
from treadle.planner.passes.ranks.cost import OrderCosts
from treadle.planner.passes.ranks.exchanges import Exchanges
from treadle.planner.passes.ranks.tours import Tours
from treadle.planner.search.clock import Expired

RINGS = ("ring", "nccl-ring")
KICKS, SEED_KICKS, BOTTLENECK_KICKS = 20, 3, 3
"""Kicks of a tour for each host: of a ring, of a start, and of a ring below one of the limits that are tried."""
OFTEN = 16
"""Kicks of a tour between two looks at the clock."""
HEATS = (Heat(1, 0.02), Heat(4, 0.2), Heat(1, 0.05), Heat(4, 0.5))
"""Restarts: what the mean counts next to the dearest, and the first temperature over what random neighbours differ."""
MOST_MOVES, MOVES, WORK = 30_000, 2000, 2_500_000
"""Neighbours in each restart: at most, for each host, and times hosts at most."""
MOST_GROUPED = 128
"""Hosts up to which groups of near hosts are a start too: beyond, they take seconds."""
WORST_SHARE = 10
"""The search for the dearest order does this part of the work of the other."""
Offer = Callable[[Sequence[int]], None]


def first_order(costs: OrderCosts, offer: Offer) -> None:
    """Offer an order that takes little time: a short ring, rotated."""
    if len(costs.latency) >= 5:
        offer(_rotated(costs, Tours(_length_matrix(costs), range(len(costs.latency))).order))


def best_order(costs: OrderCosts, seed: int, offer: Offer, stopped: Expired) -> None:
    """Offer ever cheaper orders."""
    count, matrix = len(costs.latency), _length_matrix(costs)
    if count < 5:
        return
    if costs.problem.algorithm in RINGS:
        tours = Tours(matrix, range(count))
        _chain(tours, KICKS * count, seed, offer, stopped)
        if costs.problem.objective == "bottleneck":
            _bottleneck_ring(costs, tours.order, seed, offer, stopped)
        return
    starts = _starts(costs, matrix, seed, offer, stopped)
    moves = _moves(count)
    for number, heat in enumerate(HEATS):
        if stopped():
            return
        _annealed(costs, starts[number % len(starts)], moves, heat, seed + number, offer, stopped)


def worst_order(costs: OrderCosts, seed: int, offer: Offer, stopped: Expired) -> None:
    """Offer ever dearer orders, with less work."""
    count = len(costs.latency)
    if costs.problem.algorithm in RINGS and count >= 5:
        matrix = costs.matrix(0)
        _chain(Tours(matrix.max() - matrix, range(count)), KICKS * count // WORST_SHARE, seed, offer, stopped)
        return
    moves = _moves(count) // WORST_SHARE
    _annealed(costs, range(count), moves, Heat(1, -0.2), seed, offer, stopped)


def _moves(count: int) -> int:
    return min(MOST_MOVES, MOVES * count, WORK // count)


def _length_matrix(costs: OrderCosts) -> Ints:
    """What a ring of hosts is shortest by: the costs of the hop with most bytes."""
    weights = costs.hops.weights
    return costs.matrix(int(weights.argmax())) if len(weights) else costs.latency


def _chain(tours: Tours, kicks: int, seed: int, offer: Offer, stopped: Expired) -> None:
    offer(tours.order)
    shortest = tours.length
    for kick, length in enumerate(tours.chain(kicks, Random(seed))):
        if length < shortest:
            shortest = length
            offer(tours.order)
        if kick % OFTEN == 0 and stopped():
            return


def _starts(costs: OrderCosts, matrix: Ints, seed: int, offer: Offer, stopped: Expired) -> list[list[int]]:
    """Orders in which racks stand together: a short ring, and groups of near hosts in the order of that ring."""
    count = len(matrix)
    tours = Tours(matrix, range(count))
    _chain(tours, SEED_KICKS * count, seed, lambda order: None, stopped)
    starts = [_rotated(costs, tours.order)]
    offer(starts[0])
    if stopped() or count > MOST_GROUPED:
        return starts
    place = {host: at for at, host in enumerate(tours.order)}
    groups = sorted(near_hosts(matrix.tolist(), seed=seed).groups, key=lambda group: min(place[host] for host in group))
    grouped = [host for group in groups for host in sorted(group, key=place.__getitem__)]
    starts.append(_rotated(costs, grouped))
    offer(starts[1])
    return starts


def _rotated(costs: OrderCosts, order: Sequence[int]) -> list[int]:
    """The rotation of `order` that costs least."""
    rotations = np.array(order)[(np.arange(len(order))[:, None] + np.arange(len(order))) % len(order)]
    cost, tie = costs.many(rotations)
    best: list[int] = rotations[np.lexsort((tie, cost))[0]].tolist()
    return best


def _annealed(
    costs: OrderCosts, start: Sequence[int], moves: int, heat: Heat, seed: int, offer: Offer, stopped: Expired
) -> None:
    generator = np.random.default_rng(seed)
    if costs.hops.starts is not None and costs.problem.algorithm not in RINGS:
        anneal_rounds(Exchanges(costs, start), costs.problem.objective, moves, heat, generator, offer, stopped)
        return
    sign = 1 if heat.first > 0 else -1

    def energies(orders: Ints) -> Floats:
        total, mean = costs.combined_and_mean(costs.hop_costs(orders, costs.problem.objective))
        energy: Floats = sign * (total + abs(heat.smooth) * mean)
        return energy

    anneal(energies, start, moves, heat, generator, offer, stopped)


def _bottleneck_ring(costs: OrderCosts, start: Sequence[int], seed: int, offer: Offer, stopped: Expired) -> None:
    """Rings without hops above a limit, which is halved in on; hops above it cost more than any ring without."""
    matrix, order = costs.matrix(0), list(start)
    values = np.unique(matrix[~np.eye(len(matrix), dtype=bool)])
    ranked = np.sort(matrix + np.diag(np.full(len(matrix), int(matrix.max()) + 1)), axis=1)
    low, high = int(np.searchsorted(values, ranked[:, 1].max())), int(np.searchsorted(values, _longest(matrix, order)))
    while low < high and not stopped():
        middle = (low + high) // 2
        beyond = matrix > values[middle]
        tours = Tours(matrix + np.where(beyond, len(matrix) * int(matrix.max()), 0), order)
        for kick, length in enumerate(tours.chain(BOTTLENECK_KICKS * len(order), Random(seed))):
            if length <= len(order) * int(matrix.max()) or (kick % OFTEN == 0 and stopped()):
                break
        found = _longest(matrix, tours.order)
        if found <= values[middle]:
            order, high = tours.order, int(np.searchsorted(values, found))
            offer(order)
        else:
            low = middle + 1


def _longest(matrix: Ints, order: Sequence[int]) -> int:
    return int(matrix[np.array(order), np.roll(order, -1)].max())
