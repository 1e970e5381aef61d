"""Exact survival: the examples of GEMINI, closed forms and unions compared with trying every set, estimates."""

from __future__ import annotations

import random
from math import comb

import pytest

from tests.planner.passes.checkpoint.subsets import kept_by_trying
from treadle.planner.passes.checkpoint import survival
from treadle.planner.passes.checkpoint.placement import Holders, in_cycles, listed, published, ring
from treadle.planner.passes.checkpoint.sampled import interval, sampled, subsets
from treadle.planner.passes.checkpoint.survival import kept_domains, kept_machines, of_machines, spans_of

PUBLISHED = [
    (4, 2, 2, {2: 4}),
    (5, 2, 4, {2: 6, 3: 0}),
    (7, 3, 5, {3: 30, 4: 18, 5: 0}),
    (8, 3, 6, {3: 50, 4: 45}),
    (10, 3, 6, {3: 114, 4: 171}),
    (12, 3, 4, {4: 459, 6: 594}),
    (16, 2, 8, {2: 112, 3: 448, 4: 1120}),
]


def kept_of(holders: Holders, most: int) -> list[int]:
    kept = kept_machines(holders, most)
    assert kept is not None
    return kept


@pytest.mark.parametrize(("machines", "copies", "sets", "counts"), PUBLISHED)
def test_groups_and_a_ring_survive_what_the_paper_says(
    machines: int, copies: int, sets: int, counts: dict[int, int]
) -> None:
    _, holders = published(machines, copies)
    kept = kept_of(holders, max(counts))
    assert len(set(map(frozenset, holders))) == sets
    assert {lost: kept[lost] for lost in counts} == counts
    assert kept[copies] == comb(machines, copies) - sets  # fatal are the holder sets


@pytest.mark.parametrize(
    ("machines", "copies", "counts"),
    [(4, 2, {2: 2}), (5, 2, {2: 5}), (7, 3, {3: 28, 4: 14}), (16, 2, {2: 104, 3: 352, 4: 660})],
)
def test_one_ring_survives_less(machines: int, copies: int, counts: dict[int, int]) -> None:
    kept = kept_of(ring(machines, copies), max(counts))
    assert {lost: kept[lost] for lost in counts} == counts


def test_the_corollary_is_met_below_two_groups_and_is_a_bound_beyond() -> None:
    machines, copies = 12, 3
    kept = kept_of(published(machines, copies)[1], machines)
    for lost in range(copies, machines + 1):
        least = comb(machines, lost) - machines // copies * comb(machines - copies, lost - copies)
        assert kept[lost] == least if lost < 2 * copies else kept[lost] >= max(0, least)


def test_every_size_of_loss_is_counted_as_by_trying() -> None:
    for machines in range(1, 10):
        for copies in range(1, machines + 1):
            for holders in (published(machines, copies)[1], ring(machines, copies)):
                tried = [kept_by_trying(holders, lost) for lost in range(machines + 1)]
                assert kept_of(holders, machines) == tried


def shuffled(chance: random.Random, machines: int, copies: int) -> Holders:
    """Everyone holds its own state and those of random others."""
    return tuple(
        (machine, *chance.sample([other for other in range(machines) if other != machine], copies - 1))
        for machine in range(machines)
    )


def test_placements_without_any_order_are_counted_as_by_trying() -> None:
    chance = random.Random(4)
    for _ in range(40):
        machines = chance.randint(2, 9)
        holders = shuffled(chance, machines, chance.randint(2, min(4, machines)))
        domains = [chance.randrange(4) for _ in holders]
        most = min(machines, 5)
        assert kept_of(holders, most) == [kept_by_trying(holders, lost) for lost in range(most + 1)]
        tried = [kept_by_trying(holders, lost, domains) for lost in range(3)]
        assert kept_domains(spans_of(holders, domains), len(set(domains))) == tried


def test_groups_in_any_order_and_thousands_of_them_are_counted() -> None:
    order = random.Random(1).sample(range(4096), 4096)
    holders = listed(in_cycles([order[first : first + 4] for first in range(0, 4096, 4)], 4))
    assert kept_of(holders, 6) == kept_of(published(4096, 4)[1], 6)
    assert kept_of(holders, 4)[4] == comb(4096, 4) - 1024


def test_counts_stand_only_where_they_fit_a_double() -> None:
    survived = list(of_machines(published(4096, 3)[1], 5))
    assert [found.sets for found in survived[:4]] == [comb(4096, lost) for lost in range(1, 5)]
    assert (survived[4].sets, survived[4].kept, survived[4].low) == (None, None, None)
    assert 0.999998 < survived[4].probability < 1


def test_what_takes_too_long_to_count_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    holders = shuffled(random.Random(2), 14, 3)
    exact = list(of_machines(holders, 5))
    monkeypatch.setattr(survival, "MOST_WORK", 50)
    found = list(of_machines(holders, 5))
    assert [each.kept for each in found[:2]] == [14, 91]
    for estimate, truth in zip(found[2:], exact[2:], strict=True):
        assert estimate.kept is None
        assert (estimate.low or 0) <= truth.probability <= (estimate.high or 0)


def test_random_sets_are_sets_and_all_alike() -> None:
    drawn = subsets(5, 3, 20_000, seed=0)
    assert all(len(set(row)) == 3 for row in drawn.tolist())
    counts = {tuple(sorted(row)): 0 for row in drawn.tolist()}
    for row in drawn.tolist():
        counts[tuple(sorted(row))] += 1
    assert len(counts) == 10
    assert all(1800 < count < 2200 for count in counts.values())


def test_the_interval_is_that_of_clopper_and_pearson() -> None:
    none, every = interval(0, 100), interval(100, 100)
    assert (none.low, every.high) == (0.0, 1.0)
    assert none.high == pytest.approx(1 - 0.005 ** (1 / 100))
    assert every.low == pytest.approx(0.005 ** (1 / 100))


def test_an_estimate_depends_on_nothing_but_its_seed() -> None:
    holders = ring(30, 2)
    assert sampled(holders, 3, samples=500) == sampled(holders, 3, samples=500)
    assert sampled(holders, 3, samples=501) != sampled(holders, 3, samples=501, seed=1)
