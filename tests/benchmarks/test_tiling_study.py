"""The study of tilings: its programs, and how often the greedy search misses the least cost in them."""

from __future__ import annotations

import pytest

from benchmarks.tiling.programs import als
from benchmarks.tiling.study import POOLS, compared, programs


def misses(pool: str, count: int) -> tuple[int, int]:
    """Programs in which greedy and sweeps cost more than the least."""
    found = [each.costs for each in map(compared, programs(pool, "seed", count))]
    return tuple(sum(costs[name] > costs["exact"] for costs in found) for name in ("greedy", "sweep"))  # type: ignore[return-value]


def test_greedy_misses_few_programs_that_consume_their_arrays_and_many_that_share_them() -> None:
    consumed, shared = (misses(pool, 25) for pool in list(POOLS)[::2])
    assert consumed[0] <= 2
    assert shared[0] >= 5
    assert shared[1] < shared[0], "sweeps repair some"


@pytest.mark.parametrize("copies", [False, True])
def test_all_methods_agree_on_als(copies: bool) -> None:
    users, items = 10_000_000, 100_000
    program = als(users, items, 20, 2)
    assert len(program.nodes) == 14
    each = compared(program.problem("als", 64, "seed", dup_bytes=8 * users * items * copies), enumerate_up_to=10**5)
    assert each.costs["greedy"] == each.costs["sweep"] == each.costs["exact"]
    assert each.costs.get("enumeration", each.costs["exact"]) == each.costs["exact"]
    reads = users * items * (1 if copies else 2)
    assert reads < each.costs["exact"] < 1.03 * reads, "ratings are moved once where both cuts are kept, else in turns"
