"""Halving and doubling: in round k every rank exchanges all it has with the rank 2^k away.

For a power of two the partner is rank XOR 2^k (recursive doubling; an allreduce is Rabenseifner's: halving, then
doubling); otherwise blocks shift round the circle (Bruck's allgather; backwards it is the reducescatter of "Optimal,
Non-pipelined Reduce-scatter and Allreduce Algorithms"). ceil(log2 R) rounds for any number of ranks; the blocks of a
round travel as one message only where the sketch allows that.
"""

from __future__ import annotations

from collections.abc import Iterator

from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.synthesis import Draft, Request
from treadle.planner.passes.collective.templates.template import RoundHop, Variant, best_draft, require

COLLECTIVES = ("allgather", "reducescatter", "allreduce")


def synthesize(request: Request, effort: Effort) -> Draft:
    """Near partners first or far ones first, whichever ends sooner. Raises InputError where partners have no link."""
    problem = request.problem(1)
    require("halving-doubling", problem, COLLECTIVES)
    ranks = problem.ranks
    distances = [1 << bit for bit in range((ranks - 1).bit_length())]

    def variant(words: str, rounds: list[int]) -> Variant:
        def spread(turned: bool) -> Iterator[RoundHop]:
            for number, chunk in enumerate(problem.chunks):
                holders = [chunk.owner]
                for round, distance in enumerate(rounds):
                    if ranks & (ranks - 1):
                        reached = [(rank, (rank - distance) % ranks) for rank in holders[: ranks - distance]]
                    else:
                        reached = [(rank, rank ^ distance) for rank in holders]
                    yield from (RoundHop(round, number, src, dst) for src, dst in reached)
                    holders += [dst for _, dst in reached]

        return Variant(words, problem, spread)

    variants = [variant("near partners first", distances)]
    if not ranks & (ranks - 1):
        variants.append(variant("far partners first", distances[::-1]))
    return best_draft("halving-doubling", variants)
