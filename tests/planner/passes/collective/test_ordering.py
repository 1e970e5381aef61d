"""Stage 2: list scheduling, its two keys and two directions, and the longest path that times an order."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise

import pytest

from tests.planner.passes.collective.build import (
    MB,
    RING,
    complete,
    line,
    problem_for,
    relay,
    ring,
    switch,
    switch_sketch,
)
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.ordering import (
    PORTFOLIO,
    best_of_halves,
    best_ordering,
    list_orders,
    path_lengths,
    reversed_moves,
)
from treadle.planner.passes.collective.route_moves import forward_moves, moves_of
from treadle.planner.passes.collective.routing import route
from treadle.planner.passes.collective.scheduling import Move, longest_path

# An optimal routing of a bidirectional ring of four with half chunks: every link carries three.
TREES = (
    ((0, 1), (1, 2), (2, 3)),
    ((0, 3), (2, 1), (3, 2)),
    ((0, 3), (1, 0), (3, 2)),
    ((1, 0), (1, 2), (2, 3)),
    ((2, 1), (2, 3), (3, 0)),
    ((0, 3), (1, 0), (2, 1)),
    ((0, 1), (1, 2), (3, 0)),
    ((0, 1), (3, 0), (3, 2)),
)


def test_earliest_reaches_the_optimum_where_remaining_does_not():
    moves = forward_moves(problem_for("allgather", ring(4), RING, MB // 2), TREES)
    times = {key: longest_path(moves, list_orders(moves, 4, key, "forward")).makespan for key in PORTFOLIO.modes}
    assert times == {"earliest": 15_000, "remaining": 20_000}
    assert best_ordering(moves, 4).name == "earliest forward"


# Spec 6.3: an optimal routing with all links of the switch, and none of the short arrivals of step (iii).
TRAP = (((0, 3), (3, 1), (3, 2)), ((1, 0), (1, 2), (2, 3)), ((0, 1), (1, 3), (2, 0)), ((0, 2), (2, 1), (3, 0)))


def test_greedy_trap_on_a_switch():
    problem = problem_for("allgather", switch(4), switch_sketch(4, "uc-max"))
    assert len({edge for tree in TRAP for edge in tree}) == 12
    times = [
        longest_path(moves, list_orders(moves, 4, "earliest", "forward")).makespan
        for moves in (moves_of(problem, trees) for trees in (TRAP, route(problem, Effort()).trees))
    ]
    assert times == [36_000, 27_000]


def test_path_lengths_of_a_chain_and_a_branch():
    problem = problem_for("broadcast", line(4))
    moves = moves_of(problem, (((0, 1), (1, 2), (2, 3)),))
    assert path_lengths(moves) == ([27_000, 18_000, 9_000], [0, 9_000, 18_000])
    assert path_lengths(reversed_moves(moves)) == ([9_000, 18_000, 27_000], [18_000, 9_000, 0])


CASES = [
    (collective, hardware)
    for collective in ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce")
    for hardware in (ring(4), complete(4), switch(3), relay(2, 10, 5))
]


@pytest.mark.parametrize(("collective", "hardware"), CASES)
def test_every_order_holds_each_move_once_and_can_be_scheduled(collective, hardware):
    problem = problem_for(collective, hardware)
    moves = moves_of(problem, route(problem, Effort()).trees)
    wanted = {}
    for index, move in enumerate(moves):
        for resource in move.uses:
            wanted.setdefault(resource, set()).add(index)
    for key in PORTFOLIO.modes:
        for direction in PORTFOLIO.directions:
            orders = list_orders(moves, problem.ranks, key, direction)
            assert {resource: set(order) for resource, order in orders.items()} == wanted
            assert all(len(set(order)) == len(order) for order in orders.values())
            schedule = longest_path(moves, orders)
            for order in orders.values():
                for one, other in pairwise(order):
                    assert schedule.send[other] >= schedule.arrive[one]
            for index, move in enumerate(moves):
                assert all(schedule.send[index] >= schedule.arrive[earlier] for earlier in move.after)


def test_chunk_times_are_per_rank():
    # A branching tree: the far branch must not delay the near one.
    problem = problem_for("broadcast", complete(4))
    moves = moves_of(problem, (((0, 1), (1, 2), (0, 3)),))
    assert longest_path(moves, best_ordering(moves, 4).orders).send == (0, 9_000, 0)


def test_halves_are_never_worse_than_the_whole():
    problem = problem_for("allreduce", ring(4))
    moves = moves_of(problem, route(problem, Effort()).trees)
    halves = best_of_halves(moves, 4, len(moves) // 2)
    assert halves.schedule.makespan <= best_ordering(moves, 4).schedule.makespan
    assert halves.schedule.makespan == 36_000


def test_contradicting_orders_are_refused():
    problem = problem_for("broadcast", line(3))
    moves = moves_of(problem, (((0, 1), (1, 2)),))
    with pytest.raises(ValueError, match="contradict"):
        longest_path(moves, {("port", 0, 0): (1, 0)})


def placed_one_by_one(moves, ranks, key):
    """The rule of the module's docstring, every ready move looked at each time."""
    rem, trav = path_lengths(moves)
    free, orders, arrived = defaultdict(int), defaultdict(list), {}

    def est(index):
        return max([arrived[i] for i in moves[index].after] + [free[resource] for resource in moves[index].uses])

    def rank(index):
        move = moves[index]
        lead = (est(index), -rem[index]) if key == "earliest" else (-rem[index], est(index))
        return (*lead, trav[index], (move.dst - move.src) % ranks, move.chunk, move.src, move.dst, index)

    while len(arrived) < len(moves):
        left = [i for i in range(len(moves)) if i not in arrived and all(j in arrived for j in moves[i].after)]
        index = min(left, key=rank)
        start = est(index)
        arrived[index] = start + moves[index].lat
        for resource in moves[index].uses:
            free[resource] = start + moves[index].busy(resource)
            orders[resource].append(index)
    return {resource: tuple(order) for resource, order in sorted(orders.items())}


@pytest.mark.parametrize("key", ["earliest", "remaining"])
def test_orders_follow_the_rule(key):
    for seed in range(60):
        draw = random.Random(seed)
        ranks, moves = draw.randint(2, 5), []
        for index in range(draw.randint(1, 25)):
            (src, dst), chunk = draw.sample(range(ranks), 2), draw.randrange(4)
            uses = [("link", src, dst), ("port", src, 0), ("sum", chunk, dst)]
            uses = [uses[0], *(resource for resource in uses[1:] if draw.random() < 0.5)]
            after = tuple(sorted(draw.sample(range(index), min(index, draw.choice([0, 0, 1, 2])))))
            costs = draw.choice([0, 1, 3]), draw.choice([0, 1, 2])
            moves.append(Move(chunk, src, dst, *costs, False, after, tuple(uses), pipelined=seed % 2 == 0))
        assert list_orders(moves, ranks, key, "forward") == placed_one_by_one(moves, ranks, key)


@pytest.mark.parametrize("key", ["earliest", "remaining"])
def test_many_ready_moves_on_one_link_are_ordered_at_once(key):
    uses = (("link", 0, 1), ("port", 0, 0))
    moves = [Move(chunk, 0, 1, 700, 3, False, (), uses) for chunk in range(20_000)]
    assert list_orders(moves, 2, key, "forward")["link", 0, 1] == tuple(range(20_000))
