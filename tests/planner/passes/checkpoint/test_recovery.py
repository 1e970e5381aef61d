"""Recovery plans: the examples of GEMINI, holder sets instead of groups, versions that all can have, and load."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations

import pytest

from tests.planner.passes.checkpoint.subsets import kept_by_trying
from treadle.planner.passes.checkpoint.placement import Holders, published, ring
from treadle.planner.passes.checkpoint.recovery import RecoveryPlan, complete_everywhere, recover


def after(holders: Holders, failed: set[int], version: int = 5) -> RecoveryPlan:
    """Recovery where every live machine has that version."""
    live = {machine: version for machine in range(len(holders)) if machine not in failed}
    return recover(failed, holders, complete_everywhere(holders, live))


def first(plan: RecoveryPlan) -> list[int]:
    return [sources[0] for sources in plan.sources]


@pytest.mark.parametrize(
    ("machines", "failed", "sources"),
    [
        (4, set(), [0, 1, 2, 3]),
        (4, {1}, [0, 0, 2, 3]),
        (4, {1, 3}, [0, 0, 2, 2]),
        (5, {0, 2}, [1, 1, 3, 3, 4]),
    ],
)
def test_who_loads_from_whom(machines: int, failed: set[int], sources: list[int]) -> None:
    plan = after(published(machines, 2)[1], failed)
    assert plan.version == 5
    assert first(plan) == sources


@pytest.mark.parametrize(("machines", "failed"), [(4, {0, 1}), (5, {2, 3}), (4, {0, 1, 2, 3})])
def test_all_load_from_storage_where_a_state_has_no_holder(machines: int, failed: set[int]) -> None:
    """Of machines 2, 3 and 4, a ring, one is left in the second case, but not a holder of the state of machine 2."""
    plan = after(published(machines, 2)[1], failed)
    assert plan.version is None
    assert plan.sources == ((),) * machines


def test_memory_suffices_exactly_where_survival_says_so() -> None:
    for holders in (published(7, 3)[1], ring(7, 3), published(8, 2)[1]):
        machines = range(len(holders))
        for lost in (2, 3, 4):
            plans = [after(holders, set(chosen)) for chosen in combinations(machines, lost)]
            assert sum(plan.version is not None for plan in plans) == kept_by_trying(holders, lost)


def test_versions_agree_on_the_newest_that_every_state_has() -> None:
    holders = published(4, 2)[1]
    offers = complete_everywhere(holders, {0: 8, 1: 7, 2: 8})
    assert offers[0] == {0: [8, 7], 1: [8, 7]}
    plan = recover({3}, holders, offers)
    assert plan.version == 8  # machine 0 has that of machine 1, which it would send it
    assert plan.sources == ((0,), (0,), (2,), (2,))
    assert recover({0, 3}, holders, offers).version == 7


def test_a_version_that_died_with_its_machine_is_not_taken() -> None:
    """Machine 1 fails when version 8 of its state has not arrived anywhere, while others have theirs."""
    holders = published(4, 2)[1]
    offers = {0: {0: (8, 7), 1: (7, 6)}, 2: {2: (8, 7), 3: (8, 7)}, 3: {3: (8, 7), 2: (8, 7)}}
    plan = recover({1}, holders, offers)
    assert plan.version == 7
    assert first(plan) == [0, 0, 2, 3]


def test_a_machine_that_holds_nothing_yet_serves_nobody() -> None:
    """Machine 1 has taken the place of a lost one and has only its own state, when machine 0 fails too."""
    holders = published(4, 2)[1]
    full = complete_everywhere(holders, {2: 4, 3: 4})
    plan = recover({0}, holders, full | {1: {1: (4,)}})
    assert plan.version is None
    assert first(recover(set(), holders, full | {1: {1: (4,)}, 0: {0: (4,), 1: (4,)}})) == [0, 1, 2, 3]


def test_without_a_complete_version_all_load_from_storage() -> None:
    holders = published(2, 2)[1]
    assert recover({1}, holders, complete_everywhere(holders, {0: 0})).version is None


def test_those_who_serve_least_are_asked_first() -> None:
    holders = ((0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 5), (4, 5, 0), (5, 0, 1))
    plan = after(holders, {0, 1})
    assert plan.sources[:2] == ((2,), (3, 2))


def test_a_thousand_machines_spread_what_they_serve() -> None:
    holders = published(1000, 4)[1]
    failed = set(range(0, 1000, 4))
    plan = after(holders, failed)
    assert plan.version == 5
    fetched = Counter(sources[0] for machine, sources in enumerate(plan.sources) if sources[0] != machine)
    assert set(fetched.values()) == {1}
    assert all(set(sources) == set(holders[machine]) - failed for machine, sources in enumerate(plan.sources))


def test_any_loss_is_answered_by_live_holders_of_one_version() -> None:
    chance = random.Random(3)
    for _ in range(200):
        machines = chance.randint(2, 12)
        holders = published(machines, chance.randint(1, machines))[1]
        failed = set(chance.sample(range(machines), chance.randint(0, machines)))
        newest = {machine: chance.choice((6, 7)) for machine in range(machines) if machine not in failed}
        offers = complete_everywhere(holders, newest)
        plan = recover(failed, holders, offers)
        if plan.version is None:
            assert any(failed.issuperset(held) for held in holders)
            continue
        for machine, sources in enumerate(plan.sources):
            assert sources
            assert all(plan.version in offers[source][machine] for source in sources)
