"""Masters of running jobs: the published examples, what no move breaks, and tuners on modelled networks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product

import pytest
from msgspec.structs import replace

from tests.planner.passes.aggregation.aggregation_plans import RACKS, Groups, decisions_on, problem_on
from treadle.planner.passes.aggregation.check import check
from treadle.planner.passes.aggregation.decisions import AggregationDecisions, ChunkMasters
from treadle.planner.passes.aggregation.prices import NearPrices
from treadle.planner.passes.aggregation.retune import (
    HostTraffic,
    blame,
    finetune,
    known_rates,
    most_blamed,
    quicktune,
)
from treadle.planner.passes.aggregation.traffic import pair_bytes
from treadle.planner.passes.aggregation.tuner import MOST_STEPS, MastersTuner

FLAT: Groups = ((0, 1, 2, 3, 4, 5, 6, 7),)
SLOW_LINKS = [[0, 4, 4, 4], [4, 0, 10, 10], [4, 10, 0, 10], [4, 10, 10, 0]]
"""Rates, those of host 0 lower."""
PUBLISHED = HostTraffic(
    sent=[[0, 6, 6], [3, 0, 3], [3, 3, 0]],
    round_trip_s=[[0, 0.5, 0.2], [0.5, 0, 0.1], [0.2, 0.1, 0]],
    rates=[[0, 2, 2], [2, 0, 4], [2, 4, 0]],
)


def unit_chunks(groups: Groups, chunks: int, **fields: int) -> AggregationDecisions:
    return decisions_on(problem_on(groups, size_bytes=chunks * 1024, chunk_bytes=1024, **fields), groups, chunks)


def numbers(decisions: AggregationDecisions) -> tuple[list[int], list[int]]:
    """Chunks of which each host is the local master, and the global one."""
    hosts = range(len(decisions.problem.hosts))
    local = Counter(host for chunk in decisions.chunks for host in chunk.local)
    top = Counter(chunk.top for chunk in decisions.chunks)
    return [local[host] for host in hosts], [top[host] for host in hosts]


# Quicktune


def test_quicktune_of_the_published_example() -> None:
    found = quicktune(unit_chunks(RACKS, 8), SLOW_LINKS, exact=False)
    assert numbers(found) == ([3, 5, 4, 4], [1, 3, 2, 2])
    assert longest(*numbers(found)) == pytest.approx(8 / 12)
    assert longest([4, 4, 4, 4], [2, 2, 2, 2]) == pytest.approx(1.0)
    assert not check(found)


def longest(local: list[int], top: list[int]) -> float:
    """What Quicktune minimises: chunks sent to the group and between groups, over the rates of the host."""
    return max(
        (2 * locals_ + 2 * tops) / sum(rates) for locals_, tops, rates in zip(local, top, SLOW_LINKS, strict=True)
    )


def test_the_approximation_is_within_a_seventh_of_the_best_assignment() -> None:
    counts = range(9)
    best = min(
        longest([a, 8 - a, b, 8 - b], [*tops, 8 - sum(tops)])
        for a, b in product(counts, counts)
        for tops in product(range(a + 1), range(8 - a + 1), range(b + 1))
        if 0 <= 8 - sum(tops) <= 8 - b
    )
    assert best == pytest.approx(7 / 12)
    assert longest([2, 6, 4, 4], [1, 1, 3, 3]) == pytest.approx(best)
    assert longest(*numbers(quicktune(unit_chunks(RACKS, 8), SLOW_LINKS, exact=False))) <= best * 8 / 7


def test_exact_quicktune_is_as_fast_as_the_best_masters_of_all() -> None:
    """Host 0 at half its rate: all numbers of chunks for it and its two neighbours are priced."""
    groups = ((0, 1, 2), (3, 4, 5))
    decisions = slowed(unit_chunks(groups, 12), {0: 2})
    found = quicktune(decisions, rates_of(decisions))
    prices = NearPrices(decisions.problem, groups)

    def priced(first: int, second: int) -> int:
        ours = [*[0] * first, *[1] * second, *[2] * (12 - first - second)]
        locals_ = [(host, 3 + number % 3) for number, host in enumerate(ours)]
        chunks = [ChunkMasters(1024, local, local[number % 2]) for number, local in enumerate(locals_)]
        return prices.of(groups, chunks).time_ns

    best = min(priced(first, second) for first in range(13) for second in range(13 - first))
    assert found.time_ns <= best < quicktune(decisions, rates_of(decisions), exact=False).time_ns
    assert numbers(found)[0][0] < numbers(decisions)[0][0]


def test_rates_that_were_not_measured_are_the_probes_at_the_share_that_is_left() -> None:
    decisions = unit_chunks(RACKS, 4)
    probed = rates_of(decisions)
    measured = [[None] * 4 for _ in range(4)]
    measured[0][1] = measured[1][0] = probed[0][1] / 4
    measured[2][3] = measured[3][2] = probed[2][3]
    measured[1][2] = measured[2][1] = probed[1][2]
    known = known_rates(decisions, measured)
    assert known[0][2] == pytest.approx(probed[0][2] / 4)
    assert known[3][2] == probed[3][2]
    assert known_rates(decisions, [[None] * 4] * 4) == probed


# Finetune


def test_blame_of_the_published_example() -> None:
    assert blame(PUBLISHED) == pytest.approx([1.347, 0.363, 0.290], abs=1e-3)
    decisions = unit_chunks(((0, 1, 2),), 6)
    found, blamed = finetune(decisions, PUBLISHED)
    assert blamed == 0
    assert numbers(found) == ([1, 2, 3], [1, 2, 3])


def test_equal_hosts_are_not_blamed() -> None:
    even = HostTraffic([[0, 1], [1, 0]], [[0, 0.1], [0.1, 0]], [[0, 5], [5, 0]])
    assert blame(even) == pytest.approx([0.5, 0.5])
    decisions = unit_chunks(((0, 1),), 4)
    assert finetune(decisions, even) == (decisions, None)


def test_a_global_master_of_another_group_becomes_its_local_master() -> None:
    decisions = unit_chunks(RACKS, 4)
    traffic = HostTraffic(*_loads([9, 5, 5, 1]))
    found, blamed = finetune(decisions, traffic, 2)
    assert blamed == 0
    assert numbers(found)[1] == [0, 1, 1, 2]  # host 0 was the top of one chunk; the second move is a local master
    assert numbers(found)[0][0] == numbers(decisions)[0][0] - 1
    assert not check(found)


def _loads(sent: list[float]) -> tuple[list[list[float]], list[list[float]], list[list[float]]]:
    n = len(sent)
    others = [[float(i != j) for j in range(n)] for i in range(n)]
    return [[sent[i] * each for each in others[i]] for i in range(n)], others, others


@pytest.mark.parametrize("moves", [1, 2, 4, 50])
@pytest.mark.parametrize("groups", [RACKS, FLAT, ((0, 1, 2), (3,), (4, 5))], ids=["racks", "flat", "three"])
def test_moves_keep_what_every_plan_keeps(groups: Groups, moves: int) -> None:
    decisions = unit_chunks(groups, 12, connections=3)
    hosts = len(decisions.problem.hosts)
    for worst in range(hosts):
        found, blamed = finetune(
            decisions, HostTraffic(*_loads([9 if host == worst else 1 + host / 9 for host in range(hosts)])), moves
        )
        assert not check(found)
        assert [(chunk.bytes, chunk.connection) for chunk in found.chunks] == [
            (chunk.bytes, chunk.connection) for chunk in decisions.chunks
        ]
        changed = sum(one != other for one, other in zip(found.chunks, decisions.chunks, strict=True))
        assert (blamed == worst and 0 < changed <= moves) or (blamed is None and found == decisions)


# Tuners


def rates_of(decisions: AggregationDecisions) -> list[list[float]]:
    return [[2**20 * 1e9 / ns if ns else 0.0 for ns in row] for row in decisions.problem.ns_per_MiB]


def slowed(decisions: AggregationDecisions, slow: dict[int, int]) -> AggregationDecisions:
    """On a network in which some hosts are that many times slower."""
    costs = decisions.problem.ns_per_MiB
    least = min(ns for row in costs for ns in row if ns)
    now = tuple(
        tuple(ns and max(ns, least * max(slow.get(i, 1), slow.get(j, 1))) for j, ns in enumerate(row))
        for i, row in enumerate(costs)
    )
    return replace(decisions, problem=replace(decisions.problem, ns_per_MiB=now))


def measured(decisions: AggregationDecisions, slow: dict[int, int]) -> tuple[float, HostTraffic]:
    """Seconds of an iteration, and what the operating systems count."""
    there = slowed(decisions, slow)
    sent = pair_bytes(len(there.problem.hosts), there.groups, there.chunks).tolist()
    rates = [
        [rate if count else None for rate, count in zip(*rows, strict=True)]
        for rows in zip(rates_of(there), sent, strict=True)
    ]
    trips = [[2e-9 * ns for ns in row] for row in there.problem.latency_ns]
    return NearPrices(there.problem, there.near).of(there.groups, there.chunks).time_ns / 1e9, HostTraffic(
        sent, trips, rates
    )


def steps(
    tuner: MastersTuner, slow: Callable[[int], dict[int, int]], count: int
) -> Iterator[tuple[MastersTuner, float]]:
    """The tuner and the time of an iteration, step by step."""
    for step in range(count):
        time, traffic = measured(tuner.decisions, slow(step))
        tuner, decided = tuner.step(time, traffic)
        assert decided is None or decided == tuner.decisions
        assert not check(tuner.decisions)
        yield tuner, time


@pytest.mark.parametrize("groups", [FLAT, ((0, 1, 2, 3), (4, 5, 6, 7))], ids=["flat", "racks"])
def test_a_host_that_turns_slow_is_noticed_and_planned_around(groups: Groups) -> None:
    """Host 2 has a third of its rate from the third step on; all of it again from the twentieth."""
    decisions = decisions_on(problem_on(groups, size_bytes=16 << 20), groups, 64)
    states = list(steps(MastersTuner(decisions), lambda step: {2: 3} if 2 <= step < 19 else {}, 36))
    times = [time for _, time in states]
    assert times[2] > 2.5 * times[0]
    assert times[3] < 0.65 * times[2]  # one step later
    assert min(times[3:19]) == pytest.approx(times[18], rel=0.02)
    assert times[-1] == pytest.approx(times[0], rel=0.05)
    assert states[-1][0].best is None


def test_nothing_changes_while_times_vary_by_less_than_a_fifth() -> None:
    tuner = MastersTuner(unit_chunks(FLAT, 16))
    _, traffic = measured(tuner.decisions, {})
    for time in (1.0, 1.15, 0.85, 1.19):
        tuner, decided = tuner.step(time, traffic)
        assert decided is None
    assert tuner.usual_s == 1.0


def test_moves_double_while_the_same_host_is_blamed_and_steps_end() -> None:
    decisions = decisions_on(problem_on(FLAT, size_bytes=16 << 20), FLAT, 256)
    blames = HostTraffic(*_loads([9.0, *[1.0] * 7]))
    tuner = MastersTuner(decisions, usual_s=1.0)
    moves = []
    for _ in range(MOST_STEPS + 3):
        tuner, decided = tuner.step(2.0, blames)
        moves += [tuner.moves] if decided is not None and tuner.best is not None else []
    assert moves[:4] == [1, 2, 4, 8]
    assert tuner.best is None
    assert tuner.outgrown


def test_a_plan_that_makes_iterations_slower_is_taken_back() -> None:
    decisions = unit_chunks(FLAT, 16)
    first, traffic = measured(decisions, {2: 3})
    tuner, tried = MastersTuner(decisions, usual_s=first / 2).step(first, traffic)
    assert tried is not None
    tuner, decided = tuner.step(first * 1.5, traffic)
    assert decided is not None
    assert decided.chunks == tuner.decisions.chunks == decisions.chunks
    assert tuner.best is None


def test_blame_needs_more_than_a_tenth() -> None:
    assert most_blamed(HostTraffic(*_loads([1.0, 1.0, 1.0, 1.0]))) is None
    assert most_blamed(HostTraffic(*_loads([1.0, 1.0, 3.0, 1.0]))) == 2
