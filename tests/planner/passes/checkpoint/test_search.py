"""The search of placements compared with all balanced ones; it never loses to groups and a ring."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from math import comb

import pytest
from msgspec.structs import replace

from tests.planner.passes.checkpoint.checkpoint_plans import PROBLEM
from tests.planner.passes.checkpoint.subsets import Sets, all_balanced, is_balanced, kept_by_trying
from treadle.planner.passes.checkpoint import annealing
from treadle.planner.passes.checkpoint.few_sets import few_sets, least_sets
from treadle.planner.passes.checkpoint.placement import published
from treadle.planner.passes.checkpoint.problem import CheckpointProblem
from treadle.planner.passes.checkpoint.search import kept, searched

SIZES = [(machines, copies) for machines in range(1, 7) for copies in range(1, machines + 1)]


def problem(machines: int, copies: int, domains: tuple[int, ...] = ()) -> CheckpointProblem:
    return replace(PROBLEM, machines=machines, copies=copies, domains=domains)


@cache
def balanced(machines: int, copies: int) -> list[Sets]:
    return list({frozenset(sets): sets for sets in all_balanced(machines, copies)}.values())


def most_kept(machines: int, copies: int, domains: tuple[int, ...] = ()) -> tuple[int, ...]:
    """What the best of all balanced placements survives, by one count after the other."""
    left, most = balanced(machines, copies), []
    losses = [(lost, domains) for lost in (1, 2) if domains]
    losses += [(lost, ()) for lost in range(copies, min(machines, copies + 2) + 1)]
    for lost, where in losses:
        counts = [kept_by_trying(sets, lost, where) for sets in left]
        most.append(max(counts))
        left = [sets for sets, count in zip(left, counts, strict=True) if count == most[-1]]
    return tuple(most)


@pytest.mark.parametrize(("machines", "copies"), SIZES)
def test_no_balanced_placement_of_few_machines_survives_more(machines: int, copies: int) -> None:
    given = problem(machines, copies)
    holders = searched(given)
    assert is_balanced(holders, copies)
    assert kept(given, holders) == most_kept(machines, copies)


@pytest.mark.parametrize(
    ("copies", "domains"),
    [(2, (0, 0, 1, 1)), (2, (0, 0, 0, 1, 2)), (3, (0, 0, 1, 1, 2)), (3, (0, 0, 0, 1, 2)), (2, (0, 0, 1, 1, 2, 2))],
)
def test_nor_with_failure_domains(copies: int, domains: tuple[int, ...]) -> None:
    given = problem(len(domains), copies, domains)
    holders = searched(given)
    assert is_balanced(holders, copies)
    assert kept(given, holders) == most_kept(len(domains), copies, domains)


def test_the_search_beats_a_ring_where_two_are_left_over() -> None:
    given = problem(5, 3)
    assert kept(given, published(5, 3)[1])[0] == 5
    assert kept(given, searched(given))[0] == 6


@pytest.mark.parametrize(
    ("machines", "copies", "sets"), [(7, 4, 5), (8, 3, 5), (14, 4, 5), (12, 8, 3), (23, 8, 10), (40, 24, 4)]
)
def test_few_sets_are_as_many_as_machines_and_few_are_distinct(machines: int, copies: int, sets: int) -> None:
    found = few_sets(list(range(machines)), copies)
    assert [len(chosen) for chosen in found] == [copies] * machines
    assert all(sum(machine in chosen for chosen in found) == copies for machine in range(machines))
    assert len(set(found)) == sets < len(set(map(frozenset, published(machines, copies)[1])))


def test_groups_and_a_ring_are_close_to_the_fewest_sets_and_groups_are_there() -> None:
    """The gap of GEMINI's theorem on placement: at most 2 m - 3 sets."""
    for machines in range(2, 40):
        for copies in range(1, machines + 1):
            sets, least = len(set(map(frozenset, published(machines, copies)[1]))), least_sets(machines, copies)
            assert least <= sets <= (least if machines % copies == 0 else least + 2 * copies - 3)


def cases(count: int) -> Iterator[CheckpointProblem]:
    chance = random.Random(11)
    for _ in range(count):
        machines = chance.randint(2, 20)
        copies = chance.randint(1, min(machines, 5))
        racks = chance.randint(1, 6)
        domains = tuple(chance.randrange(racks) for _ in range(machines)) if chance.random() < 0.7 else ()
        yield problem(machines, copies, domains)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annealing, "STEPS", 20)


@pytest.mark.usefixtures("short")
def test_the_search_never_loses_to_groups_and_a_ring() -> None:
    for given in cases(40):
        holders = searched(given)
        assert is_balanced(holders, given.copies)
        assert kept(given, holders) >= kept(given, published(given.machines, given.copies)[1])


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(("machines", "rack"), [(1000, 8), (96, 12)])
def test_a_lost_rack_loses_no_state_and_racks_share_groups_with_few_others(machines: int, rack: int) -> None:
    racks = machines // rack
    given = problem(machines, 2, tuple(machine // rack for machine in range(machines)))
    one, two, *_ = kept(given, searched(given))
    assert one == racks
    assert comb(racks, 2) - two == (racks // 2 if racks % 2 == 0 else (racks - 3) // 2 + 3)  # pairs, or one triple


@pytest.mark.usefixtures("short")
def test_racks_of_different_sizes_are_spread_too() -> None:
    domains = (*(0,) * 5, *(1,) * 4, *(2,) * 2, 3, 4, 5)
    given = problem(len(domains), 2, domains)
    assert kept(given, searched(given))[0] == 6


@pytest.mark.usefixtures("short")
def test_the_same_seed_gives_the_same_placement() -> None:
    given = problem(9, 4, (0, 0, 0, 1, 1, 1, 2, 2, 2))
    assert searched(given, seed=3) == searched(given, seed=3)


def test_a_search_without_time_still_gives_groups_and_a_ring_or_better() -> None:
    given = problem(11, 3)
    assert kept(given, searched(given, expired=lambda: True)) >= kept(given, published(11, 3)[1])
