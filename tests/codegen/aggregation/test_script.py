"""Scripts of ranks: the messages of the plan's program, and sums that come out right in any order in which messages may
arrive."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.planner.passes.aggregation.aggregation_plans import Groups, decisions_on, problem_on
from treadle.codegen.aggregation.lower import collective_of
from treadle.codegen.aggregation.script import ranks_of, script_of, streams_of
from treadle.codegen.collective.actions import Action
from treadle.planner.passes.aggregation.decisions import AggregationDecisions


def planned(groups: Groups, **fields: int) -> AggregationDecisions:
    return decisions_on(problem_on(groups, **fields), groups, 7)


PLANS = {
    "two racks": planned(((0, 1, 2), (3, 4))),
    "flat": planned(((0, 1, 2, 3),)),
    "hosts of two ranks": planned(((0, 2), (1,)), slots=2),
    "one host": planned(((0,),)),
}


@pytest.mark.parametrize("name", PLANS)
def test_messages_are_those_of_the_program(name: str) -> None:
    plan = PLANS[name]
    sent = Counter(
        (action.sends.tag, action.sends.src, action.sends.dst)
        for rank in range(ranks_of(plan))
        for action in script_of(plan, rank)
        if action.sends is not None
    )
    assert sent == Counter((move.chunk, move.src, move.dst) for move in collective_of(plan).transfers)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("seed", range(4))
def test_every_rank_has_the_exact_sum_whatever_comes_first(name: str, seed: int) -> None:
    """Messages are late at random; each action runs once those that it waits for have."""
    plan, dice = PLANS[name], random.Random(seed)
    ranks = range(ranks_of(plan))
    scripts = [script_of(plan, rank) for rank in ranks]
    values = [[100**rank + number for number in range(len(plan.chunks))] for rank in ranks]
    total = [sum(row[number] for row in values) for number in range(len(plan.chunks))]
    done: list[set[int]] = [set() for _ in ranks]
    flying: dict[tuple[int, int, int], int] = {}

    def can_run(rank: int, index: int, action: Action) -> bool:
        arrived = action.receives is None or (action.receives.src, rank, action.receives.tag) in flying
        return index not in done[rank] and arrived and done[rank].issuperset((*action.after, *action.behind))

    while ready := [
        (rank, index, action)
        for rank in ranks
        for index, action in enumerate(scripts[rank])
        if can_run(rank, index, action)
    ]:
        rank, index, action = dice.choice(ready)
        number = action.place.threadblock
        if action.receives is not None:
            came = flying.pop((action.receives.src, rank, action.receives.tag))
            values[rank][number] = came + (values[rank][number] if action.reads else 0)
        if action.sends is not None:
            flying[rank, action.sends.dst, action.sends.tag] = values[rank][number]
        done[rank].add(index)
    assert [len(each) for each in done] == [len(script) for script in scripts]
    assert values == [total for _ in ranks]


def test_a_chunk_waits_for_no_other() -> None:
    for rank in range(5):
        script = script_of(PLANS["two racks"], rank)
        for action in script:
            assert {script[other].place.threadblock for other in action.after} <= {action.place.threadblock}


def test_messages_take_the_connection_of_their_chunk() -> None:
    plan = planned(((0, 1), (2, 3)), connections=3)
    script = script_of(plan, 0)
    expected = [plan.chunks[action.place.threadblock].connection for action in script]
    assert streams_of(plan, script) == expected
    assert set(expected) == {0, 1, 2}
