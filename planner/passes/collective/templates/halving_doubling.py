"""Halving and doubling: in round k every rank exchanges all it has with the rank 2^k away.

For a power of two the partner is rank XOR 2^k (recursive doubling; an allreduce is Rabenseifner's: halving, then
doubling); otherwise blocks shift round the circle (Bruck's allgather; backwards it is the reducescatter of "Optimal,
Non-pipelined Reduce-scatter and Allreduce Algorithms"). ceil(log2 R) rounds for any number of ranks; the blocks of a
round travel as one message only where the sketch allows that. Where equal racks or nodes are a power of two, they may
exchange in any round: early ones carry the smallest parts, late ones neighbouring parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from treadle.planner.passes.collective.groups import partitions
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.problem import Problem
from treadle.planner.passes.collective.synthesis import Draft, Request
from treadle.planner.passes.collective.templates.template import RoundHop, Variant, best_draft, require

COLLECTIVES = ("allgather", "reducescatter", "allreduce")


def synthesize(request: Request, effort: Effort) -> Draft:
    """The order of partners that ends soonest. Raises InputError where partners have no link."""
    problem = request.problem(1)
    require("halving-doubling", problem, COLLECTIVES)
    ranks = problem.ranks
    distances = [1 << bit for bit in range((ranks - 1).bit_length())]

    def variant(words: str, order: Sequence[int]) -> Variant:
        place = {rank: index for index, rank in enumerate(order)}
        numbered = request.collective != "allreduce" or order == list(range(ranks))
        problem = request.problem(1, None if numbered else order)

        def spread(turned: bool) -> Iterator[RoundHop]:
            for number, chunk in enumerate(problem.chunks):
                holders = [place[chunk.owner]]
                for round, distance in enumerate(distances):
                    if ranks & (ranks - 1):
                        reached = [(at, (at - distance) % ranks) for at in holders[: ranks - distance]]
                    else:
                        reached = [(at, at ^ distance) for at in holders]
                    yield from (RoundHop(round, number, order[src], order[dst]) for src, dst in reached)
                    holders += [dst for _, dst in reached]

        return Variant(words, problem, spread)

    return best_draft("halving-doubling", [variant(words, list(order)) for order, words in _orders(problem).items()])


def _orders(problem: Problem) -> dict[tuple[int, ...], str]:
    """Orders of the ranks, whose i-th exchanges with the one 2^k further in round k; in words."""
    ranks = problem.ranks
    found = {tuple(range(ranks)): "near partners first"}
    if ranks & (ranks - 1):
        return found
    bits = range(ranks.bit_length() - 1)
    found.setdefault(_by_bits(range(ranks), bits[::-1]), "far partners first")
    for groups in partitions(problem.topology):
        members = [rank for group in groups for rank in sorted(group)]
        inside = bits[: len(groups[0]).bit_length() - 1]
        for round in inside:
            order = _by_bits(members, [*inside[:round], *bits[len(inside) :], *inside[round:]])
            found.setdefault(order, f"groups of {len(groups[0])} exchange parts of {2**round}/{ranks}")
    return found


def _by_bits(members: Sequence[int], bits: Sequence[int]) -> tuple[int, ...]:
    """`members`, of which number i has bit k of its place at bit bits[k] of i."""
    return tuple(members[sum((at >> k & 1) << bit for k, bit in enumerate(bits))] for at in range(len(members)))
