"""Masters shared out over groups: each chunk is added up in every group, then by one of the groups' masters, and back.

The two-level hierarchical aggregation of "PLink" (AggEngine), and its flat form, in which everyone sends to the one
master of the chunk. Groups are the racks and nodes of the machine, of any sizes: each has global masters in proportion
to its size, and each rank is the local master of as many chunks as the others of its group. Where ranks are unequal,
fast ones may be masters of more, in one group too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from treadle.planner.errors import InputError
from treadle.planner.machine.masters import shared_out
from treadle.planner.passes.collective.groups import disjoint, partitions
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.problem import Problem
from treadle.planner.passes.collective.synthesis import Draft, Request
from treadle.planner.passes.collective.templates.template import RoundHop, Variant, best_draft, piece_counts, require

PIECES = (1, 2, 4)
"""Chunks for each rank."""
MOST_MESSAGES = 6_000
"""Beyond which a buffer is not cut into more chunks."""

NAME = "two-level-masters"
WHERE = f"method {NAME}"
Groups = Sequence[Sequence[int]]


def synthesize(request: Request, effort: Effort) -> Draft:
    """The groups, chunks and shares of the masters that end soonest. Raises InputError for other collectives, for equal
    ranks without groups, and where a member has no link to its master."""
    whole = request.problem(1)
    require(NAME, whole, ("allreduce",))
    uneven = _shares(whole)
    divisions: list[tuple[Groups, Sequence[int] | None]] = [(groups, None) for groups in _divisions(whole)]
    if len({*uneven}) > 1:
        divisions += [(groups, uneven) for groups in (*_divisions(whole), (range(whole.ranks),))]
    if not divisions:
        raise InputError("found equal ranks in one group, expected several groups; use all-pairs", where=WHERE)
    variants = []
    for pieces in piece_counts(whole, PIECES):
        chunks = pieces * whole.ranks
        if pieces > 1 and 2 * chunks * (whole.ranks - 1) > MOST_MESSAGES:
            break
        variants += [_variant(request, groups, chunks, weights) for groups, weights in divisions]
    return best_draft(NAME, variants)


def _divisions(problem: Problem) -> list[Groups]:
    """Racks and nodes, equal or not, of several ranks."""
    racks = disjoint(problem.topology.racks, problem.ranks)
    found = [*partitions(problem.topology), racks, problem.topology.islands]
    listed = dict.fromkeys(tuple(tuple(sorted(group)) for group in groups) for groups in found)
    return [groups for groups in listed if 1 < len(groups) < problem.ranks]


def _shares(problem: Problem) -> list[int]:
    """By rank: its share of the masters that lets ranks of one group end together, in thousandths of the buffer.

    A rank sends its own buffer but for its share x, and the sums of its share to all others: (1 + (n - 2) x) buffers.
    Those that are slower than the rest are for that alone are no masters.
    """
    count = problem.ranks
    least = [min((link.beta_ns for edge, link in problem.links.items() if edge[0] == rank), default=0)
             for rank in range(count)]  # fmt: skip
    rates = [Fraction(1, max(1, ns)) for ns in least]
    ranked, level = sorted(rates, reverse=True), Fraction(0)
    for held in range(count, 0, -1):
        level = (count - 2 + held) / sum(ranked[:held], Fraction(0))
        if ranked[held - 1] * level >= 1:
            break
    return [int(1000 * max(Fraction(0), rate * level - 1) / max(1, count - 2)) for rate in rates]


def _variant(request: Request, groups: Groups, chunks: int, weights: Sequence[int] | None) -> Variant:
    chosen = shared_out(groups, chunks, weights)
    problem = request.problem(1, [masters.top for masters in chosen])

    def spread(turned: bool) -> Iterator[RoundHop]:
        for number, masters in enumerate(chosen):
            yield from (RoundHop(0, number, masters.top, local) for local in masters.local if local != masters.top)
            for group, local in zip(groups, masters.local, strict=True):
                yield from (RoundHop(1, number, local, member) for member in group if member != local)

    words = "one group" if len(groups) == 1 else f"{len(groups)} groups"
    by_speed = ", more for fast ranks" if weights is not None else ""
    return Variant(f"{words}, {chunks} chunks{by_speed}", problem, spread)
