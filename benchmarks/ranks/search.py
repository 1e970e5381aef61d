"""How cheap planned orders of hosts are, next to proved bounds, simple orders and plain annealing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import Row, Table, progress
from treadle.planner.passes.ranks.cost import OrderCosts
from treadle.planner.passes.ranks.planning import plan_ranks
from treadle.planner.passes.ranks.problem import Algorithm, RankedHost, RanksProblem

Ints = NDArray[np.int64]
SIZES = {16: 4, 64: 8, 256: 16, 512: 16}
"""Racks by number of hosts."""
FACTORS = {16: (4, 4), 64: (4, 4, 4), 256: (4, 4, 4, 4), 512: (8, 8, 8)}
ALGORITHMS: tuple[Algorithm, ...] = ("ring", "halving-doubling", "tree", "double-tree", "bcube", "nccl-tree")
INSIDE, ACROSS, NOISE = 100, 400, 20
"""Costs of planted racks; random costs lie between 1 and ACROSS."""
MOVES, COLD = 20_000, 1e-3
"""Plain annealing: neighbours, and its last temperature over the first one."""


def tables() -> Iterator[Table]:
    """Cost, bound, gap and seconds of planned orders on planted racks and random costs, next to simpler orders."""
    note = (
        f"planted racks: {INSIDE} inside, {ACROSS} across, and up to {NOISE} more; random: 1 to {ACROSS}; seed 1",
        "by rack: hosts sorted by their planted racks; nearest: the nearest host that is left, from the first one on; "
        f"annealed: {MOVES:,} neighbours of plain annealing (exchanged pairs, shuffled segments)",
    )
    for name in ("planted racks", "random costs"):
        rows = list[Row]()
        for count, racks in SIZES.items():
            for algorithm in ALGORITHMS:
                progress(f"{name}, {count} hosts, {algorithm}")
                rows.append(_row(count, racks if name == "planted racks" else 1, algorithm))
        yield Table(f"Orders of hosts with {name}: cost of the model", rows, note)


def _row(count: int, racks: int, algorithm: Algorithm) -> Row:
    matrix, rack = planted(count, racks)
    problem = RanksProblem(
        version=1,
        hosts=tuple(RankedHost(name=f"h{host}") for host in range(count)),
        latency_ns=tuple(map(tuple, matrix.tolist())),
        algorithm=algorithm,
        factors=FACTORS[count] if algorithm == "bcube" else (),
    )
    began = time.monotonic()
    plan = plan_ranks(problem)
    seconds = time.monotonic() - began
    costs = OrderCosts(problem)
    return {
        "hosts": count,
        "algorithm": algorithm,
        "cost": plan.decisions.cost_ns,
        "bound": round(plan.certificate.lower_bound),
        "gap %": 100 * plan.certificate.gap,
        "proved": plan.certificate.optimal,
        "seconds": seconds,
        "original": plan.decisions.original_ns,
        "median": plan.decisions.median_ns,
        "worst": plan.decisions.worst_ns,
        "by rack": costs.of(np.argsort(rack, kind="stable").tolist()).cost_ns if racks > 1 else None,
        "nearest": costs.of(nearest(matrix)).cost_ns,
        "annealed": annealed(costs),
    }


def planted(count: int, racks: int) -> tuple[Ints, Ints]:
    """Costs [N, N] of hosts dealt out to racks at random, and their racks [N]; random costs for one rack."""
    generator = np.random.default_rng(1)
    rack = generator.permutation(np.arange(count) * racks // count)
    upper = np.triu(generator.integers(1, (ACROSS if racks == 1 else NOISE) + 1, (count, count)), 1)
    noise = upper + upper.T
    if racks == 1:
        return noise, rack
    return np.where(np.eye(count, dtype=bool), 0, noise + np.where(rack[:, None] == rack, INSIDE, ACROSS)), rack


def nearest(matrix: Ints) -> list[int]:
    """From host 0 on, always the nearest host that is left."""
    order, left = [0], set(range(1, len(matrix)))
    while left:
        order.append(min(left, key=lambda host: (int(matrix[order[-1], host]), host)))
        left.remove(order[-1])
    return order


def annealed(costs: OrderCosts) -> int:
    """The cost after the search of "PLink Collectives": pairs exchanged and segments shuffled, one neighbour at a time,
    from the order in which hosts were handed out."""
    generator, order = Random(1), list(range(len(costs.latency)))
    current = best = costs.of(order).cost_ns
    hot = current / 10
    for move in range(MOVES):
        tried = _neighbour(order, generator)
        found = costs.of(tried).cost_ns
        if found <= current + hot * COLD ** (move / MOVES) * generator.expovariate(1):
            order, current = tried, found
            best = min(best, found)
    return best


def _neighbour(order: Sequence[int], generator: Random) -> list[int]:
    tried = list(order)
    first, last = sorted(generator.sample(range(len(order)), 2))
    if generator.random() < 0.5:
        tried[first], tried[last] = tried[last], tried[first]
        return tried
    part = tried[first : last + 1]
    generator.shuffle(part)
    tried[first : last + 1] = part
    return tried
