"""Problems of ranks that tests share: racks, irregular costs, random ones, and plans as hops."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from treadle.planner.passes.ranks.problem import Algorithm, Objective, PlanHop, RankedHost, RanksProblem

IRREGULAR = ((0, 2, 9, 10), (2, 0, 6, 4), (9, 6, 0, 3), (10, 4, 3, 0))
ALGORITHMS: tuple[Algorithm, ...] = (
    "ring", "halving-doubling", "tree", "double-tree", "bcube", "nccl-ring", "nccl-tree", "plan"
)  # fmt: skip
OBJECTIVES: tuple[Objective, ...] = ("sum", "bottleneck", "bytes")
Matrix = Sequence[Sequence[int]]


def racks(count: int, racks: int, inside: int = 1, across: int = 10) -> list[list[int]]:
    """Hosts in racks of equal size, one rack after the other."""
    size = count // racks
    return [[0 if i == j else inside if i // size == j // size else across for j in range(count)] for i in range(count)]


def symmetric(count: int, seed: int, most: int = 100) -> list[list[int]]:
    """Random costs from 1 to `most`."""
    generator, found = Random(seed), [[0] * count for _ in range(count)]
    for i in range(count):
        for j in range(i):
            found[i][j] = found[j][i] = generator.randint(1, most)
    return found


def planted(count: int, racks: int, seed: int, noise: int = 20) -> list[list[int]]:
    """Hosts dealt out to racks at random: 100 inside, 400 across, and up to `noise` more."""
    generator, extra = Random(seed), symmetric(count, seed, noise)
    rack = [place * racks // count for place in range(count)]
    generator.shuffle(rack)
    return [
        [0 if i == j else extra[i][j] + (100 if rack[i] == rack[j] else 400) for j in range(count)]
        for i in range(count)
    ]


def rack_numbers(costs: Matrix, across: int = 400) -> list[int]:
    """The rack of each host of `planted`: its first host."""
    return [min(j for j, cost in enumerate(row) if cost < across) for row in costs]


def ranks_problem(
    costs: Matrix,
    algorithm: Algorithm,
    objective: Objective = "sum",
    *,
    rates: Matrix | None = None,
    size: int = 0,
    factors: tuple[int, ...] | None = None,
    hops: tuple[PlanHop, ...] | None = None,
) -> RanksProblem:
    """The problem of hosts with these costs; BCube has one round, and the plan is a chain there and back."""
    count = len(costs)
    chain = [PlanHop(k, k + 1, 3, (k - 1,) if k else ()) for k in range(count - 1)]
    back = [PlanHop(k + 1, k, 2, (len(chain) - 1,)) for k in range(count - 1)]
    return RanksProblem(
        version=1,
        hosts=tuple(RankedHost(name=f"h{place}") for place in range(count)),
        latency_ns=tuple(map(tuple, costs)),
        ns_per_MiB=None if rates is None else tuple(map(tuple, rates)),
        size_bytes=size,
        algorithm=algorithm,
        objective=objective,
        factors=(count,) if factors is None and algorithm == "bcube" else factors or (),
        hops=() if algorithm != "plan" else tuple(chain + back) if hops is None else hops,
    )
