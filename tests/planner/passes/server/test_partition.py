"""Chunks over bins: longest processing time first, its guarantee, and the optimum that is searched for."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import product
from typing import get_args

import numpy as np
import pytest
from msgspec.structs import replace

from tests.planner.passes.server.pbox import pbox, served
from treadle.planner.errors import InputError
from treadle.planner.passes.server import partition
from treadle.planner.passes.server.chunking import chunks_of
from treadle.planner.passes.server.decisions import Level, Policy
from treadle.planner.passes.server.keys import ServerKey
from treadle.planner.passes.server.mapping import mapped
from treadle.planner.passes.server.partition import (
    guarantee,
    least_most,
    loads_of,
    longest_first,
    spread,
)
from treadle.planner.search.clock import Clock

KB = 1024


def loads(sizes: list[int], rates: list[int], exact: bool = False) -> list[int]:
    found = spread(np.array(sizes), rates, Clock()).bins if exact else longest_first(np.array(sizes), rates)
    return [*map(int, loads_of(np.array(sizes), found, len(rates)))]


def least(sizes: list[int], rates: list[int]) -> Fraction:
    """The least time of the slowest bin over all spreads."""
    return min(
        max(Fraction(load, rate) for load, rate in zip(_loads(sizes, bins, len(rates)), rates, strict=True))
        for bins in product(range(len(rates)), repeat=len(sizes))
    )


def _loads(sizes: list[int], bins: tuple[int, ...], count: int) -> list[int]:
    return [sum(size for size, own in zip(sizes, bins, strict=True) if own == place) for place in range(count)]


def test_longest_first_is_as_far_from_the_optimum_as_its_guarantee_allows() -> None:
    assert loads([3, 3, 2, 2, 2], [1, 1]) == [7, 5]
    assert loads([3, 3, 2, 2, 2], [1, 1], exact=True) == [6, 6]
    assert guarantee(2) == Fraction(7, 6)


def test_the_exact_search_proves_what_longest_first_misses() -> None:
    sizes = [5, 5, 4, 4, 3, 3, 3]
    assert loads(sizes, [1, 1, 1]) == [11, 8, 8]
    found = spread(np.array(sizes), [1, 1, 1], Clock())
    assert (loads_of(np.array(sizes), found.bins, 3).tolist(), found.optimal) == ([9, 9, 9], True)


@pytest.mark.parametrize("seed", range(12))
def test_a_spread_called_optimal_is_the_best_of_all(seed: int) -> None:
    rng = random.Random(seed)
    rates = rng.choice([[1, 1], [1, 1, 1], [2, 1], [3, 2, 2]])
    sizes = [64 * rng.randint(1, 12) for _ in range(rng.randint(2, 7))]
    found = spread(np.array(sizes), rates, Clock())
    assert found.optimal
    reached = loads_of(np.array(sizes), found.bins, len(rates)).tolist()
    best = least(sizes, rates)
    assert max(Fraction(load, rate) for load, rate in zip(reached, rates, strict=True)) == best
    if len({*rates}) == 1:
        greedy = max(loads(sizes, rates))
        assert greedy <= guarantee(len(rates)) * best
        assert least_most(np.array(sizes), len(rates)) <= best


@pytest.mark.parametrize("rates", [[1, 1, 1], [3, 1], [10, 7, 7, 5]], ids=str)
def test_many_chunks_of_one_size_go_where_each_of_them_would(rates: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [640] * 1000 + [64] * 300 + [1280] * 3
    at_once = longest_first(np.array(sizes), rates).tolist()
    monkeypatch.setattr(partition, "FEW", len(sizes))
    assert longest_first(np.array(sizes), rates).tolist() == at_once


def test_keys_become_chunks_of_which_the_last_is_short_and_cores_get_even_shares() -> None:
    keys = (ServerKey(name="a", elements=100 * KB // 4), ServerKey(name="b", elements=40 * KB // 4))
    two = replace(served(8, pbox(2)), keys=keys)
    chunks = chunks_of(two, 32 * KB)
    assert [size // KB for size in chunks.bytes.tolist()] == [32, 32, 32, 4, 32, 8]
    found = mapped(two, chunks, "key-by-interface")
    assert sorted(loads_of(chunks.bytes, found.places, 2) // KB) == [68, 72]


def test_four_cores_share_three_keys() -> None:
    sizes = [size * KB for size in (32, 32, 32, 4, 32, 8, *[32] * 6, 8)]
    assert loads(sizes, [1, 1, 1, 1]) == [96 * KB, 96 * KB, 76 * KB, 72 * KB]


@pytest.mark.parametrize("policy", get_args(Policy))
def test_no_chunk_leaves_the_domain_of_its_interface_and_every_core_is_one_slot(policy: Policy) -> None:
    problem = served(10_000_000, pbox(5, cores_per_interface=2))
    found = mapped(problem, chunks_of(problem, 4096), policy)
    for slot in found.slots:
        if slot.interface is not None:
            assert problem.machine.interfaces[slot.interface].domain == slot.domain
    assert len({(slot.server, slot.domain, slot.core) for slot in found.slots}) == len(found.slots) == 10
    used = {*found.places.tolist()}
    assert used == {*range(10)}
    levels = [load.level for load in found.levels]
    expected: list[Level] = ["server", "domain", "interface", "core"]
    assert levels == [level for level in expected if level != "interface" or policy == "key-by-interface"]


def test_domains_get_bytes_by_the_rates_of_their_cards() -> None:
    problem = served(30_000_000, pbox(3))  # two cards on one processor, one on the other
    found = mapped(problem, chunks_of(problem, 4096), "key-by-interface")
    each = loads_of(chunks_of(problem, 4096).bytes, found.places, 3)
    assert max(each) - min(each) <= 4096


@pytest.mark.parametrize(
    ("size", "message"), [(100, "a multiple of 64"), (1 << 31, "at most 1073741824"), (64, "at most")]
)
def test_chunks_that_no_buffer_or_plan_holds_are_refused(size: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        chunks_of(served(531_500_000), size)
