"""Stage 3: which neighbours on a link travel as one message, and when (TACCL, section 5.5.3, equations 5.16 to 5.21).

Routes and orders are fixed. On every batchable link with order e_1..e_n, a run (i, j) is e_i..e_j sent as one message.

    x[l,i,j] in {0,1}   run (i, j) of link l is a message; runs of at most max_run moves, never across a move of
                        another link that stands between them in an order both share
    t[p] in {0,1}       moves p and p+1 of a link are in one message: TACCL's is_together, for neighbours
    send[e] in ns,  dur[e] = alpha + beta * (length of the run that covers e),  time in ns

    B1  minimise time;  time >= send[e] + dur[e];  send[e] >= send[p] + dur[p] for every p that e waits for   5.1-5.4
        every move is in exactly one run:  sum of x[l,i,j] with i <= e <= j  = 1
        t[p] = sum of x[l,i,j] with i <= p < j                                  B8, is_together is symmetric
    B2  t[p] = 1  ->  send[p+1] = send[p]                                       5.16
    B3  dur[e] = alpha + beta * sum of (j - i + 1) * x[l,i,j] over runs covering e    5.17 with the self term
    B4  arrival = send + dur                                                    5.18, substituted
    B5  t[p] = 0  ->  send[p+1] >= send[p] + dur[p]                             5.19
    B6  neighbours on a port or in a sum that use different links:  send[next] >= send[e] + dur[e]   5.20
        (an uplink: its own beta in place of alpha + beta)
    B7  the same for receiving ports                                            5.21
    cut time >= earliest head + alpha * ceil(n / max_run) + n * beta + shortest tail, on every batchable link

Runs instead of pairs say the same (a batch is consecutive in its link's order, B2 and B5 imply that) with fewer rows,
and let `adjacent` leave out runs whose chunks do not lie side by side in memory at both ends.
The best known schedule is the hint; what comes back is only the batching, its times are the longest path.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from treadle.planner.errors import LimitError
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.ordering import Ordering, path_lengths
from treadle.planner.passes.collective.problem import Batching
from treadle.planner.passes.collective.scheduling import Move, MoveTimes, Orders, longest_path
from treadle.planner.passes.collective.topology import Edge
from treadle.planner.solver import Model, Status, Var

Run = tuple[int, int]


@dataclass(frozen=True)
class Batched:
    """`optimal`: proved that no other batching of these routes and orders ends sooner."""

    schedule: MoveTimes
    optimal: bool


def batch(moves: Sequence[Move], ordering: Ordering, batching: Batching, effort: Effort, floor: int = 0) -> Batched:
    """The best batching found. Nothing is solved where no batch is possible or `floor`, a bound, is met already."""
    runs = possible_runs(moves, ordering.orders, batching)
    if not runs or ordering.schedule.makespan <= floor:
        return Batched(ordering.schedule, True)
    model, choices = contiguity_model(moves, ordering, batching, runs)
    try:
        solution = effort.solve(model, effort.limits.scheduling)
    except LimitError:
        return Batched(ordering.schedule, False)
    if not solution.found:
        return Batched(ordering.schedule, False)
    leader = list(range(len(moves)))
    for (edge, (first, last)), var in choices.items():
        if solution.values[var]:
            order = ordering.orders["link", *edge]
            for position in range(first, last + 1):
                leader[order[position]] = order[first]
    schedule = longest_path(moves, ordering.orders, leader)
    best = min(ordering.schedule, schedule, key=lambda found: found.makespan)
    return Batched(best, solution.status is Status.OPTIMAL)


def possible_runs(moves: Sequence[Move], orders: Orders, batching: Batching) -> dict[Edge, tuple[Run, ...]]:
    """Runs of two or more moves that may be one message, by link; links without any are left out."""
    adjacent_in: dict[tuple[int, int], int] = defaultdict(int)
    for order in orders.values():
        for pair in pairwise(order):
            adjacent_in[pair] += 1
    result: dict[Edge, tuple[Run, ...]] = {}
    for edge in sorted(batching.links):
        order = orders.get(("link", *edge), ())
        runs = []
        for first in range(len(order)):
            for last in range(first + 1, min(len(order), first + batching.max_run)):
                one, other = order[last - 1], order[last]
                shared = set(moves[one].uses) & set(moves[other].uses)
                if adjacent_in[one, other] < len(shared) or moves[one].reduce != moves[other].reduce:
                    break
                members = order[first : last + 1]
                if not batching.adjacent or _side_by_side(moves, orders, members):
                    runs.append((first, last))
        if runs:
            result[edge] = tuple(runs)
    return result


def _side_by_side(moves: Sequence[Move], orders: Orders, members: Sequence[int]) -> bool:
    """Whether the chunks are neighbours in one buffer at the sender, at the receiver, and in what they are added to."""
    places = [(source, target) for i in members if (source := moves[i].source) and (target := moves[i].target)]
    if len(places) < len(members):
        return False
    places.sort()
    source, target = places[0]
    for offset, pair in enumerate(places):
        if pair != ((source[0], source[1] + offset), (target[0], target[1] + offset)):
            return False
    if not moves[members[0]].reduce:
        return True
    # The first sum at a rank adds to its input; later ones add to where that went.
    firsts = {orders["sum", moves[i].chunk, moves[i].dst][0] == i for i in members}
    return firsts == {True} or (firsts == {False} and target[0] == "output")


def contiguity_model(
    moves: Sequence[Move], ordering: Ordering, batching: Batching, runs: dict[Edge, tuple[Run, ...]]
) -> tuple[Model, dict[tuple[Edge, Run], Var]]:
    """B1 to B8, and the variable of every run."""
    orders, known = ordering.orders, ordering.schedule
    model = Model("contiguity")
    horizon = known.makespan
    time = model.int_var(0, horizon, "time")
    send = [model.int_var(0, horizon) for _ in moves]
    model.hint(time, horizon)
    for var, value in zip(send, known.send, strict=True):
        model.hint(var, value)
    choices: dict[tuple[Edge, Run], Var] = {}
    together: dict[tuple[int, int], Var] = {}
    extra: list[list[tuple[Var, int]]] = [[] for _ in moves]
    """length - 1 of the run that covers e, as terms: dur[e] = alpha + beta * (1 + these)."""

    for edge, longer in runs.items():
        order = orders["link", *edge]
        covering: list[list[Var]] = [[] for _ in order]
        joining: list[list[Var]] = [[] for _ in order[1:]]
        for run in [*((p, p) for p in range(len(order))), *longer]:
            var = choices[edge, run] = model.bool_var()
            model.hint(var, int(run[0] == run[1]))
            for position in range(run[0], run[1] + 1):
                covering[position].append(var)
                if run[1] > run[0]:
                    extra[order[position]].append((var, run[1] - run[0]))
            for position in range(run[0], run[1]):
                joining[position].append(var)
        for variables in covering:
            model.add_linear([(var, 1) for var in variables], 1, 1)
        for position, variables in enumerate(joining):
            if variables:
                joint = model.bool_var()
                model.hint(joint, 0)
                model.add_linear([*((var, 1) for var in variables), (joint, -1)], 0, 0)
                together[order[position], order[position + 1]] = joint

    def follows(one: int, other: int, unless: Var | None = None, own: int | None = None) -> None:
        beta, least = (moves[one].beta, moves[one].lat) if own is None else (own, own)
        terms = [(send[other], 1), (send[one], -1), *((var, -beta * coef) for var, coef in extra[one])]
        model.add_linear(terms, least, enforced_by=None if unless is None else ~unless)

    for index, move in enumerate(moves):
        terms = [(time, 1), (send[index], -1), *((var, -move.beta * coef) for var, coef in extra[index])]
        model.add_linear(terms, move.lat)
        for earlier in move.after:
            follows(earlier, index)
    for resource, order in orders.items():
        for one, other in pairwise(order):
            same_link = (moves[one].src, moves[one].dst) == (moves[other].src, moves[other].dst)
            if resource[0] != "link":
                if not same_link:
                    follows(one, other, own=dict(moves[one].own).get(resource))
                continue
            both = together.get((one, other))
            follows(one, other, both)
            if both is not None:
                model.add_linear([(send[one], 1), (send[other], -1)], 0, 0, enforced_by=both)
    rem, trav = path_lengths(moves)
    for edge in runs:
        order = orders["link", *edge]
        alpha, beta = moves[order[0]].alpha, moves[order[0]].beta
        head = min(trav[index] for index in order)
        tail = min(rem[index] - moves[index].lat for index in order)
        model.add_linear([(time, 1)], head + alpha * -(-len(order) // batching.max_run) + beta * len(order) + tail)
    model.minimize([(time, 1)])
    return model, choices
