"""Aggregation plans: bytes and times worked by hand, what wins on which network, and what nothing can beat."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations, pairwise, permutations

import pytest
from msgspec.structs import replace

from tests.planner.passes.aggregation.aggregation_plans import RACKS, Groups, problem_on
from treadle.planner.documents.cost_matrix import CostHost, CostMatrix, PairRate
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InputError
from treadle.planner.machine.masters import shared_out
from treadle.planner.passes.aggregation.bound import lower_bound
from treadle.planner.passes.aggregation.candidates import chunks_of
from treadle.planner.passes.aggregation.check import check
from treadle.planner.passes.aggregation.decisions import AggregationDecisions
from treadle.planner.passes.aggregation.extract import problem_of
from treadle.planner.passes.aggregation.levelled import WHOLE, filled
from treadle.planner.passes.aggregation.planning import AggregationOptions, plan_aggregation
from treadle.planner.passes.aggregation.prices import NearPrices
from treadle.planner.passes.aggregation.problem import AggregationProblem
from treadle.planner.passes.aggregation.traffic import MOST_MESSAGES, leaving, pair_bytes, pieces

pytestmark = pytest.mark.usefixtures("few_steps")

MIB = 1 << 20


def racks(count: int, size: int) -> Groups:
    return tuple(tuple(range(first, first + size)) for first in range(0, count * size, size))


def noisy(
    groups: Groups, across: int, seed: int = 0, slow: dict[int, int] | None = None, size_bytes: int = 16 * MIB
) -> AggregationProblem:
    """A million ns per MiB inside groups, `across` times as much between them and `slow` times for some hosts, with
    noise of a tenth; latencies of 20 us."""
    draw = random.Random(seed)
    home = {host: number for number, group in enumerate(groups) for host in group}
    hosts = sorted(home)
    latency, rates = [[0] * len(hosts) for _ in hosts], [[0] * len(hosts) for _ in hosts]
    for i, j in combinations(hosts, 2):
        times = max(1 if home[i] == home[j] else across, *((slow or {}).get(host, 1) for host in (i, j)))
        rates[i][j] = rates[j][i] = int(1_000_000 * times * (1 + abs(draw.gauss(0, 0.1))))
        latency[i][j] = latency[j][i] = int(20_000 * (1 + abs(draw.gauss(0, 0.1))))
    problem = problem_on(groups, size_bytes=size_bytes, connections=4)
    return replace(problem, latency_ns=tuple(map(tuple, latency)), ns_per_MiB=tuple(map(tuple, rates)))


def plan(problem: AggregationProblem, **options: object) -> Plan[AggregationDecisions]:
    return plan_aggregation(problem, options=AggregationOptions(**options))  # type: ignore[arg-type]


# Bytes


@pytest.mark.parametrize(
    ("groups", "flat", "ring", "two"),
    [
        (racks(2, 2), (6, 4), (6, 3), (6, 2)),
        (racks(2, 4), (14, 8), (14, 3.5), (14, 2)),
        (racks(4, 2), (14, 12), (14, 7), (14, 6)),
    ],
    ids=["2x2", "2x4", "4x2"],
)
def test_bytes_of_the_schemes_are_those_counted(
    groups: Groups, flat: tuple[float, float], ring: tuple[float, float], two: tuple[float, float]
) -> None:
    """In times of the buffer: all messages, and those between racks, of a sharded server, a ring and two levels."""
    hosts = sum(map(len, groups))
    problem = problem_on(groups, size_bytes=hosts * 1024)
    prices, everyone = NearPrices(problem, groups), (tuple(range(hosts)),)
    for division, expected in ((everyone, flat), (groups, two)):
        price = prices.of(division, chunks_of([1024] * hosts, shared_out(division, hosts), 1))
        assert (price.total_bytes, price.across_bytes) == tuple(times * problem.size_bytes for times in expected)
    hops = list(pairwise([*range(hosts), 0]))
    home = {host: number for number, group in enumerate(groups) for host in group}
    each = 2 * (hosts - 1) / hosts
    assert ring == (each * len(hops), each * sum(home[a] != home[b] for a, b in hops))
    assert prices.ring().across_bytes == ring[1] * problem.size_bytes


@pytest.mark.parametrize(
    ("count", "size", "total", "least", "most"), [(2, 2, 6, 2, 6), (2, 4, 14, 2, 14), (4, 2, 14, 6, 14)]
)
def test_halving_and_doubling_crosses_racks_as_little_as_two_levels_in_the_best_of_all_orders(
    count: int, size: int, total: int, least: int, most: int
) -> None:
    problem = problem_on(racks(count, size), size_bytes=8192)
    price = NearPrices(problem, racks(count, size)).of(
        racks(count, size), chunks_of([1024] * 8, shared_out(racks(count, size), 8), 1)
    )
    assert (price.total_bytes, price.across_bytes) == (total * 8192, least * 8192)
    hosts = range(count * size)
    exchanges = [(a, a ^ 2**i, 2 ** -(i + 1)) for i in range(3) if 2**i in hosts for a in hosts]
    assert 2 * sum(share for *_, share in exchanges) == total
    crossing = {
        2 * sum(share for a, b, share in exchanges if rack[a] != rack[b])
        for rack in {*permutations([host // size for host in hosts])}
    }
    assert (min(crossing), max(crossing)) == (least, most)


@pytest.mark.parametrize(("count", "size"), [(1, 5), (2, 3), (3, 2), (4, 4)])
def test_a_plan_sends_no_byte_more_than_any_tree(count: int, size: int) -> None:
    problem = noisy(racks(count, size), 4)
    for levels in (1, 2) if count > 1 else (1,):
        found = plan(problem, levels=levels, given=racks(count, size)).decisions
        assert found.total_bytes == 2 * (count * size - 1) * problem.size_bytes
        if levels == 2:
            assert found.across_bytes == 2 * (count - 1) * problem.size_bytes


def test_bytes_that_leave_a_group_are_those_of_its_hosts_to_others() -> None:
    chunks = chunks_of([10, 10], shared_out(RACKS, 2), 1)
    assert [(chunk.local, chunk.top) for chunk in chunks] == [((0, 3), 0), ((1, 2), 2)]
    sent = pair_bytes(4, RACKS, chunks)
    assert sent.tolist() == [[0, 20, 0, 10], [20, 0, 10, 0], [0, 10, 0, 20], [10, 0, 20, 0]]
    assert leaving(sent, RACKS) == [20, 20]


def test_the_time_is_latencies_the_busiest_end_and_the_first_chunk() -> None:
    """Four hosts of two racks and 4 chunks of 256 KiB. Each host sends 1.5 MiB at 800,000 ns a MiB, each rack 1 MiB
    over an uplink that takes two streams of 3,200,000 ns a MiB."""
    problem = problem_on(RACKS, chunk_bytes=MIB // 4)
    found = plan(problem, given=RACKS, levels=2).decisions
    assert [chunk.bytes for chunk in found.chunks] == [MIB // 4] * 4
    fixed, busy, fill = 2 * (20_000 + 50_000), max(1.5 * 800_000, 3_200_000 / 2), 800_000 * 2 * 2 / 4
    assert found.time_ns == fixed + busy + fill
    assert {rival.name: rival.time_ns for rival in found.rivals} == {
        "ring": 2 * 3 * 50_000 + 1.5 * 3_200_000 / 2,
        "flat": 2 * 50_000 + 2 * 3_200_000 / 2 + fill / 2,
        "two-level": found.time_ns,
    }


# What wins


def test_two_racks_behind_slow_uplinks_are_found_and_get_two_levels() -> None:
    found = plan(noisy(racks(2, 4), 8))
    assert (found.decisions.levels, found.decisions.groups) == (2, racks(2, 4))
    times = {rival.name: rival.time_ns for rival in found.decisions.rivals}
    assert found.decisions.time_ns < min(times["flat"], times["ring"])
    assert found.provenance.method == "groups by rates, masters even"


def test_one_rack_gets_one_level_and_few_bytes_the_fewest_rounds() -> None:
    assert plan(noisy(racks(1, 8), 1)).decisions.levels == 1
    assert plan(noisy(racks(2, 4), 4, size_bytes=4096)).decisions.levels == 1


def test_racks_that_only_latencies_show_are_found() -> None:
    problem = problem_on(racks(2, 4))
    alike = tuple(tuple(1_000_000 if i != j else 0 for j in range(8)) for i in range(8))
    found = plan(replace(problem, ns_per_MiB=alike, latency_ns=noisy(racks(2, 4), 5).ns_per_MiB))
    assert found.decisions.near == racks(2, 4)
    assert found.provenance.method.startswith("groups by latency")


def test_a_slow_host_is_no_master_and_stays_in_its_rack() -> None:
    found = plan(noisy(racks(2, 4), 3, slow={1: 6}))
    assert found.decisions.near == racks(2, 4)
    assert 1 not in {host for chunk in found.decisions.chunks for host in chunk.local}
    assert found.certificate.gap < 0.05
    assert found.provenance.method == "groups by rates, masters by speed"


@pytest.mark.parametrize("seed", range(3))
def test_a_plan_is_never_slower_than_even_masters_and_never_faster_than_the_bound(seed: int) -> None:
    draw = random.Random(seed)
    problem = noisy(
        racks(draw.randint(2, 3), draw.randint(1, 4)),
        draw.choice([1, 2, 8]),
        seed,
        {0: draw.choice([1, 3])},
        10**6 + seed,
    )
    found = plan(problem)
    assert not check(found.decisions)
    assert found.certificate.lower_bound <= min(
        found.decisions.time_ns, *(rival.time_ns for rival in found.decisions.rivals)
    )
    others = [rival.time_ns for rival in found.decisions.rivals if rival.name != "ring"]
    assert found.decisions.time_ns <= min(others)


def test_equal_hosts_reach_the_bound_but_for_the_first_chunk_and_a_round() -> None:
    problem = replace(problem_on(racks(1, 4)), size_bytes=64 * MIB)
    found = plan(problem)
    assert lower_bound(NearPrices(problem, found.decisions.near)).argument.kind == "hosts"
    assert found.decisions.time_ns - found.certificate.lower_bound == 20_000 + 2 * 800_000 * 65536 // MIB


def test_latency_bounds_a_buffer_of_four_bytes() -> None:
    problem = replace(problem_on(RACKS), size_bytes=4)
    bound = lower_bound(NearPrices(problem, RACKS))
    assert (bound.argument.kind, bound.time_ns) == ("latency", 50_000)
    relayed = tuple(
        tuple(90_000 if {i, j} == {0, 3} else ns for j, ns in enumerate(row))
        for i, row in enumerate(problem.latency_ns)
    )
    assert lower_bound(NearPrices(replace(problem, latency_ns=relayed), RACKS)).time_ns == 70_000


@pytest.mark.parametrize("extra", [0.3, 1.0, 7.0])
def test_shares_by_speed_level_the_busiest_host(extra: float) -> None:
    costs = [1.0, 1.0, 2.0, 5.0]
    shares = [part / WHOLE for part in filled(1, extra, costs)]
    assert sum(shares) == pytest.approx(1)
    ends = [(1 + share * extra) * cost for share, cost in zip(shares, costs, strict=True)]
    level = min(end for end, share in zip(ends, shares, strict=True) if share)
    assert all(end == pytest.approx(level) for end, share in zip(ends, shares, strict=True) if share)
    assert all(end >= level for end, share in zip(ends, shares, strict=True) if not share)


# Pieces and streams


def test_pieces_are_equal_numbers_for_hosts_within_a_program() -> None:
    problem = problem_on(racks(2, 4), size_bytes=64 * MIB)
    assert len(pieces(problem)) == 1024
    assert len(pieces(problem_on(racks(2, 4), size_bytes=9 * 65536))) == 16
    assert pieces(problem_on(racks(2, 4), size_bytes=100)) == [100]
    assert pieces(problem_on(racks(2, 2), size_bytes=4097)) == [1025, 1025, 1025, 1022]
    many = pieces(problem_on(racks(8, 8), size_bytes=1 << 30))
    assert len(many) % 64 == 0
    assert 2 * 63 * len(many) <= MOST_MESSAGES < 2 * 63 * (len(many) + 64)


def test_streams_between_two_hosts_carry_alike() -> None:
    found = plan(noisy(racks(2, 4), 4)).decisions
    for host in range(8):
        loads = Counter[int]()
        for chunk in found.chunks:
            loads[chunk.connection] += chunk.bytes * (host in chunk.local)
        assert max(loads.values()) - min(loads.values()) <= 2 * found.chunks[0].bytes


# What a user asks for


def test_groups_may_be_given_or_counted() -> None:
    problem = noisy(racks(2, 4), 4)
    asked = ((1, 0, 2), (7, 3, 4, 5, 6))
    given = plan(problem, given=asked, levels=2).decisions
    assert given.groups == ((0, 1, 2), (3, 4, 5, 6, 7))
    assert given.embedding is None
    assert len(plan(problem, groups=4).decisions.near) == 4
    assert plan(problem, groups=1).decisions.near == (tuple(range(8)),)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": 9}, "found 9 groups of 8 hosts, expected 1 to 8"),
        ({"groups": 1, "levels": 2}, "found two levels of one group, expected several groups for them"),
        ({"groups": 2, "given": racks(2, 4)}, "found groups and their number, expected one of them"),
        ({"given": racks(2, 3)}, "found groups with no host 6, expected each of 8 hosts in one group"),
        ({"given": ((0, 1), (1, 2, 3, 4, 5, 6, 7))}, "found groups with host 1 twice"),
        ({"given": racks(3, 3)}, "found groups with host 8, expected each of 8 hosts"),
        ({"given": ((), tuple(range(8)))}, "found groups with no host in one, expected each of 8 hosts in one group"),
    ],
    ids=["too many", "one for two levels", "both", "missing", "twice", "unknown", "empty"],
)
def test_groups_that_cannot_be_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan(problem_on(racks(2, 4)), **options)


def test_a_problem_that_is_not_sound_is_refused() -> None:
    with pytest.raises(InputError, match="problem of aggregation"):
        plan(replace(problem_on(RACKS), latency_ns=()))


def test_one_seed_gives_one_plan() -> None:
    problem = noisy(racks(2, 3), 4)
    assert plan(problem) == plan(problem)


# From measured costs


def matrix(rates: tuple[PairRate, ...], slots: tuple[int, ...] = (1, 1)) -> CostMatrix:
    return CostMatrix(
        version=1,
        name="two",
        hosts=tuple(CostHost(name=f"h{place}", slots=count) for place, count in enumerate(slots)),
        latency_us=((0, 20), (20, 0)),
        rates=rates,
    )


def test_a_problem_is_taken_from_measured_costs() -> None:
    rates = (PairRate(0, 1, 1e9), PairRate(1, 0, 1e9))
    problem = problem_of(matrix(rates), size_bytes=100, chunk_bytes=10, connections=2)
    assert problem.latency_ns == ((0, 20_000), (20_000, 0))
    assert problem.ns_per_MiB == ((0, 1_048_576), (1_048_576, 0))
    assert (problem.size_bytes, problem.chunk_bytes, problem.connections) == (100, 10, 2)
    assert plan(problem).decisions.time_ns > 40_000


def test_costs_without_rates_or_with_uneven_slots_are_refused() -> None:
    with pytest.raises(InputError, match=r"costs\.json: .*found no rates, .* expected those of some pairs"):
        problem_of(matrix(()), size_bytes=100, where="costs.json")
    with pytest.raises(InputError, match="found 1 and 2 slots, expected as many on every host"):
        problem_of(matrix((PairRate(0, 1, 1e9),), (1, 2)), size_bytes=100, repair="max")
