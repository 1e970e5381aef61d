"""Measured costs as passes price them: whole and symmetric, or refused in a line that names the pairs."""

from __future__ import annotations

from itertools import combinations, pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.planner.documents.cost_matrix import CostHost, CostMatrix, PairRate
from treadle.planner.errors import InputError
from treadle.planner.machine.host_costs import HostCosts, Repair, host_costs

Latencies = list[list[float | None]]


def matrix(latency_us: Latencies, rates: tuple[PairRate, ...] = ()) -> CostMatrix:
    hosts = tuple(CostHost(name=f"h{place}") for place in range(len(latency_us)))
    return CostMatrix(version=1, name="m", hosts=hosts, latency_us=tuple(map(tuple, latency_us)), rates=rates)


@st.composite
def latencies(draw: st.DrawFn, most: int = 6) -> list[list[float]]:
    """Of both directions, which may differ."""
    count = draw(st.integers(2, most))
    us = st.integers(1, 10**6).map(lambda ns: ns / 1000)
    return [[0.0 if i == j else draw(us) for j in range(count)] for i in range(count)]


def costs_of(latency_us: Latencies, repair: Repair | None = None) -> HostCosts:
    return host_costs(matrix(latency_us), "m.json", repair)


@given(latencies())
def test_a_symmetric_matrix_is_kept_in_ns(us: list[list[float]]) -> None:
    even: Latencies = [[us[min(i, j)][max(i, j)] for j in range(len(us))] for i in range(len(us))]
    found = costs_of(even)
    assert found.latency_ns == tuple(tuple(round(1000 * (cost or 0)) for cost in row) for row in even)
    assert found.ns_per_MiB is None
    assert found == costs_of(even, "max") == costs_of(even, "mean")


@given(latencies())
def test_two_directions_become_their_max_or_their_mean(us: list[list[float]]) -> None:
    raw: Latencies = [list(row) for row in us]
    largest, mean = costs_of(raw, "max").latency_ns, costs_of(raw, "mean").latency_ns
    for i, j in permutations(range(len(us)), 2):
        assert largest[i][j] == round(1000 * max(us[i][j], us[j][i]))
        assert abs(mean[i][j] - 1000 * (us[i][j] + us[j][i]) / 2) <= 1
        assert mean[i][j] == mean[j][i] <= largest[i][j]


@given(latencies(), st.data())
def test_one_direction_is_taken_for_both_only_where_asked_for(us: list[list[float]], data: st.DataObject) -> None:
    even: Latencies = [[us[min(i, j)][max(i, j)] for j in range(len(us))] for i in range(len(us))]
    i, j = data.draw(st.sampled_from(list(permutations(range(len(us)), 2))))
    whole = costs_of(even)
    even[i][j] = None
    with pytest.raises(
        InputError, match=rf"one direction only of 1 pair of hosts \(h{min(i, j)} - h{max(i, j)}\).*--repair max"
    ):
        costs_of(even)
    assert costs_of(even, "max") == costs_of(even, "mean") == whole


def test_what_cannot_be_mended_names_the_pairs() -> None:
    hole: Latencies = [[0, None, 3, 3], [None, 0, 3, 3], [3, 3, 0, None], [3, 3, None, 0]]
    for repair in (None, "max", "mean"):
        with pytest.raises(
            InputError, match=r"m.json: \$.latency_us: found nothing for 2 pairs of hosts \(h0 - h1, h2 - h3\)"
        ):
            costs_of(hole, repair)  # type: ignore[arg-type]


def test_an_uneven_matrix_names_the_first_pairs_their_number_and_the_repair() -> None:
    uneven: Latencies = [[0 if i == j else 1.0 + i for j in range(5)] for i in range(5)]
    with pytest.raises(InputError) as error:
        costs_of(uneven)
    assert str(error.value) == (
        "m.json: $.latency_us: found two directions that differ for 10 pairs of hosts (h0 - h1, h0 - h2, h0 - h3, ...)"
        ", expected a symmetric matrix; mend it with --repair max or --repair mean"
    )


def test_costs_of_nothing_are_refused_unless_there_are_rates() -> None:
    free: Latencies = [[0, 0], [0, 0]]
    with pytest.raises(InputError, match=r"m.json: found no cost between any two hosts"):
        costs_of(free)
    assert host_costs(matrix(free, (PairRate(0, 1, 2.0**20),)), "").ns_per_MiB == ((0, 10**9), (10**9, 0))
    assert costs_of([[0]]).latency_ns == ((0,),)


def test_rates_are_mended_as_latencies_but_one_direction_is_enough() -> None:
    us: Latencies = [[0, 1], [1, 0]]
    both = matrix(us, (PairRate(0, 1, 2.0**20), PairRate(1, 0, 2.0**21)))
    with pytest.raises(InputError, match=r"\$.rates: found two directions that differ for 1 pair"):
        host_costs(both, "m.json")
    assert host_costs(both, "m.json", "max").ns_per_MiB == ((0, 10**9), (10**9, 0))
    assert host_costs(both, "m.json", "mean").ns_per_MiB == ((0, 75 * 10**7), (75 * 10**7, 0))


def test_smallest_and_largest_numbers_stay_whole() -> None:
    found = host_costs(matrix([[0, 1e-30], [1e-30, 0]], (PairRate(0, 1, 5e-324),)), "")
    assert found.latency_ns == ((0, 1), (1, 0))
    assert found.ns_per_MiB is not None
    assert found.ns_per_MiB[0][1] > 2**1000


def ones(count: int) -> Latencies:
    return [[float(i != j) for j in range(count)] for i in range(count)]


@given(st.integers(1, 3), st.integers(2, 4), st.randoms(use_true_random=False))
def test_rates_along_a_tree_of_links_estimate_the_others_exactly(racks: int, size: int, random: object) -> None:
    """Hosts 1 Gb/s, a rack's uplink slower: one chain through each rack and one between racks says all."""
    count = racks * size
    host_rate, uplink_rate = 1e8, 2e7
    truth = {(i, j): host_rate if i // size == j // size else uplink_rate for i, j in combinations(range(count), 2)}
    chain = [PairRate(i, j, truth[i, j]) for i, j in pairwise(range(count))]
    random.shuffle(chain)  # type: ignore[attr-defined]
    found = host_costs(matrix(ones(count), tuple(chain)), "").ns_per_MiB
    whole = host_costs(
        matrix(ones(count), tuple(PairRate(i, j, rate) for (i, j), rate in truth.items())), ""
    ).ns_per_MiB
    assert found == whole


@given(st.data())
def test_an_estimate_is_the_best_of_all_paths_and_no_measured_rate_changes(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 5))
    pairs = list(combinations(range(count), 2))
    measured = data.draw(st.dictionaries(st.sampled_from(pairs), st.integers(1, 9), min_size=1))
    rates = tuple(PairRate(i, j, float(rate)) for (i, j), rate in measured.items())
    found = host_costs(matrix(ones(count), rates), "").ns_per_MiB
    assert found is not None

    def rate(i: int, j: int) -> int:
        return measured.get((min(i, j), max(i, j)), 0)

    def widest(i: int, j: int) -> int:
        others = [host for host in range(count) if host not in (i, j)]
        paths = [(i, *middle, j) for length in range(count - 1) for middle in permutations(others, length)]
        return max(min(rate(a, b) for a, b in pairwise(path)) for path in paths)

    for i, j in pairs:
        expected = rate(i, j) or widest(i, j) or min(measured.values())
        assert found[i][j] == found[j][i] == -(-(2**20) * 10**9 // expected)
