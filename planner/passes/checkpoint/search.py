"""The balanced placement that survives most: where machines do not divide into groups, or share failure domains.

With domains machines are first put in an order that spreads groups over them, and change places one by one while that
helps. Groups, and few sets (`few_sets`) for what is left over, are the start of a local search over what is left over
and the last groups. Whatever survives less than groups and a ring is dropped, so that none is worse.

Nothing is searched without domains where machines divide into groups, which are the best (GEMINI's theorem on
placement), nor for two copies: pairs of machines are then the sets, equal pairs or cycles of them, and an odd number of
machines needs one cycle, whose best is a triangle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from treadle.planner.passes.checkpoint.annealing import Kept, annealed
from treadle.planner.passes.checkpoint.apart import put_apart
from treadle.planner.passes.checkpoint.few_sets import few_sets
from treadle.planner.passes.checkpoint.placement import Holders, cycles_of, in_cycles, listed, published
from treadle.planner.passes.checkpoint.problem import CheckpointProblem
from treadle.planner.passes.checkpoint.rounds import in_rounds
from treadle.planner.passes.checkpoint.spread import spread
from treadle.planner.passes.checkpoint.survival import kept_domains, kept_machines, spans_of
from treadle.planner.search.clock import Expired, never

MOST_SEARCHED = 24
"""Machines of a local search."""
LAST_GROUPS = 3


def searched(problem: CheckpointProblem, seed: int = 0, expired: Expired = never) -> Holders:
    """Holders that survive at least as much as those of groups and a ring, which they are where none survive more."""
    best = published(problem.machines, problem.copies)[1]
    if problem.copies == 1 or not (problem.domains or (problem.copies > 2 and problem.machines % problem.copies)):
        return best
    most, order = kept(problem, best), list(range(problem.machines))
    for other in _orders(problem, seed, expired):
        holders = in_groups(other, problem.copies)
        if (found := kept(problem, holders)) > most:
            best, most, order = holders, found, other
    for holders in _with_last_ones(problem, order, seed, expired):
        if (found := kept(problem, holders)) > most:
            best, most = holders, found
    return best


def kept(problem: CheckpointProblem, holders: Holders) -> Kept:
    """What a placement survives, in order of importance; larger is better."""
    copies = problem.copies
    machines = kept_machines(holders, min(problem.machines, copies + 2)) or [0] * copies
    if not problem.domains:
        return tuple(machines[copies:])
    domains = kept_domains(spans_of(holders, problem.domains), len(set(problem.domains)))
    return (*domains[1:], *machines[copies:])


def in_groups(order: Sequence[int], copies: int) -> Holders:
    """Groups and a ring of machines in `order`."""
    return listed(in_cycles(cycles_of(order, copies), copies))


def _orders(problem: CheckpointProblem, seed: int, expired: Expired) -> Iterator[list[int]]:
    """Orders of machines that spread groups over failure domains."""
    if not problem.domains:
        return
    order = spread(problem.domains, problem.copies)
    yield order
    sets = [frozenset(held) for held in in_groups(order, problem.copies)]
    at = put_apart(sets, problem.domains, seed, expired)
    yield [at[machine] for machine in order]


def _with_last_ones(problem: CheckpointProblem, order: list[int], seed: int, expired: Expired) -> Iterator[Holders]:
    """Groups in `order`, with few sets for what is left over, and with what a local search makes of the last groups."""
    copies, domains = problem.copies, problem.domains
    cycles = cycles_of(order, copies)
    for last in sorted({*range(1, LAST_GROUPS + 1), len(cycles)}):
        rest = [machine for cycle in cycles[-last:] for machine in cycle]
        small = len(rest) <= MOST_SEARCHED
        if last > len(cycles) or not (small or last == 1):
            continue
        whole, sets = in_cycles(cycles[:-last], copies), few_sets(rest, copies)
        yield listed(whole | in_rounds(rest, sets))
        if small:
            outside = spans_of(whole.values(), domains) if domains else set()
            yield listed(whole | in_rounds(rest, annealed(sets, domains, outside, seed, expired)))
