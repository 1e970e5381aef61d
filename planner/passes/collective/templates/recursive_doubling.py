"""Recursive doubling: whole sums exchanged in pairs, so that every rank knows all after log2 R rounds.

An allreduce of one chunk: in round k rank r exchanges its partial sum with rank r XOR 2^k. Ranks beyond a power of two
hand their part to a partner first and get the result from it at the end ("Optimization of Collective Communication
Operations in MPICH"). Over nodes either all ranks exchange with their twins, or nodes first sum up inside, the two
gateways of two nodes cross, and the result spreads inside again. Half the latencies of a tree, for tiny buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from treadle.planner.errors import InputError
from treadle.planner.passes.collective.groups import level_sizes
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.messages import Message
from treadle.planner.passes.collective.problem import Problem
from treadle.planner.passes.collective.synthesis import Draft, Request
from treadle.planner.passes.collective.templates.binomial import fastest_tree
from treadle.planner.passes.collective.templates.levels import levels
from treadle.planner.passes.collective.templates.template import best_of, require

NAME = "recursive-doubling"
COLLECTIVES = ("allreduce",)


def synthesize(request: Request, effort: Effort) -> Draft:
    """Near partners first, far partners first or by gateways, whichever ends soonest. Raises InputError where partners
    have no two links of one cost."""
    problem = request.problem(1, (request.root,) if request.collective == "allreduce" else None)
    require(NAME, problem, COLLECTIVES)
    ranks = list(range(problem.ranks))
    options = [
        ("near partners first", lambda: list(doubling(problem, ranks))),
        ("far partners first", lambda: list(doubling(problem, ranks, far=True))),
    ]
    if problem.ranks == 2 * level_sizes(problem.topology)[0]:
        options.append(("two gateways", lambda: list(by_gateways(problem))))
    return best_of(NAME, ((words, problem, make) for words, make in options))


def doubling(problem: Problem, ranks: Sequence[int], *, far: bool = False) -> Iterator[Message]:
    """Every rank of `ranks` gets the sum over all of them."""
    power = 1 << (len(ranks).bit_length() - 1)
    core, extra = ranks[:power], ranks[power:]
    for one, other in zip(extra, core, strict=False):
        yield from sent(problem, one, other)
    bits = range(power.bit_length() - 1)
    for bit in reversed(bits) if far else bits:
        for place, one in enumerate(core):
            if not place >> bit & 1:
                yield from exchanged(problem, one, core[place | 1 << bit])
    for one, other in zip(extra, core, strict=False):
        yield from sent(problem, other, one, final=len(ranks) == problem.ranks)


def by_gateways(problem: Problem) -> Iterator[Message]:
    """Sums of each of two nodes, both crossing at once, and the result spread from where they arrive."""
    size = level_sizes(problem.topology)[0]
    for base in (0, size):
        if size & (size - 1):
            raise InputError(f"needs a power of two in each node, found {size}", where=f"method {NAME}")
        yield from doubling(problem, range(base, base + size))
    out, into = levels(problem, size, False).pair(0)
    if out == into:
        yield from exchanged(problem, out, size + into)
    else:
        yield from sent(problem, out, size + into)
        yield from sent(problem, size + out, into)
    for base in (0, size):
        for src, dst in fastest_tree(problem, base + into, False, range(base, base + size)):
            yield Message((0,), src, dst)


def sent(problem: Problem, src: int, dst: int, *, final: bool = False) -> Iterator[Message]:
    """A partial sum to be added, or the result. Raises InputError without a link."""
    if (src, dst) not in problem.links:
        raise InputError(f"needs a link {src} -> {dst}, which the sketch does not include", where=f"method {NAME}")
    yield Message((0,), src, dst, not final)


def exchanged(problem: Problem, one: int, other: int) -> Iterator[Message]:
    """Both partial sums, at the same time. Raises InputError without two links of one cost."""
    yield from sent(problem, one, other)
    (back,) = sent(problem, other, one)
    there, here = problem.links[one, other], problem.links[other, one]
    if (there.alpha_ns, there.beta_ns) != (here.alpha_ns, here.beta_ns):
        raise InputError(f"needs links {one} -> {other} and back of one cost", where=f"method {NAME}")
    yield back._replace(twin=True)
