"""Allreduces that exchange what the patterns of libraries exchange, as collective programs that our runtimes execute.

A pattern becomes steps of messages that reduce; the same steps backwards, turned around, spread the sums. Ranks of one
host first add up at the first of them, which is its host's in the pattern.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest
from math import prod
from typing import NamedTuple

from treadle.codegen.collective.check import check
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.program import CollectiveProgram
from treadle.planner.errors import CheckFailed
from treadle.planner.passes.collective.algorithm import CollectiveDecisions, LinkCost, Transfer
from treadle.planner.passes.ranks.patterns import Edge, pattern_of
from treadle.planner.passes.ranks.problem import RanksProblem


class ChunkMessage(NamedTuple):
    """The chunks from `first` to `last` - 1 go from place `src` to place `dst`."""

    src: int
    dst: int
    first: int
    last: int


Step = list[ChunkMessage]


class Halves(NamedTuple):
    """The steps of a reduce-scatter, and the place at which each chunk ends."""

    steps: list[Step]
    roots: list[int]


def program_of(problem: RanksProblem) -> CollectiveProgram:
    """The allreduce of halving and doubling, BCube or trees over all ranks by place; those of a host are neighbours.

    Raises CheckFailed where the independent check of programs finds something.
    """
    program = lower(allreduce_of(problem), inplace=True)
    if findings := check(program):
        raise CheckFailed(f"{problem.algorithm}: the check of its program failed", tuple(findings))
    return program


def allreduce_of(problem: RanksProblem) -> CollectiveDecisions:
    """The messages of the algorithm in their order; times only count chunks."""
    count, slots = len(problem.hosts), problem.hosts[0].slots
    if problem.algorithm == "bcube":
        half = exchanged(range(count), problem.factors)
    elif problem.algorithm == "halving-doubling":
        half = halved(count)
    else:
        half = summed_up([list(tree.edges) for tree in pattern_of(problem).trees])
    chunks = len(half.roots)
    inside = [[ChunkMessage(host * slots + slot, host * slots, 0, chunks) for host in range(count)]
              for slot in range(1, slots)]  # fmt: skip
    across = [[ChunkMessage(src * slots, dst * slots, *span) for src, dst, *span in step] for step in half.steps]
    return _decisions(count * slots, inside + across, [root * slots for root in half.roots], problem.size_bytes)


def halved(count: int) -> Halves:
    """Halving over the largest power of two of places; those beyond it fold into their neighbours first."""
    bits = count.bit_length() - 1
    extra = count - (1 << bits)
    kept = [*range(1, 2 * extra, 2), *range(2 * extra, count)]
    half = exchanged(kept, (2,) * bits)
    fold = [ChunkMessage(2 * k, 2 * k + 1, 0, len(kept)) for k in range(extra)]
    return Halves([fold, *half.steps] if extra else half.steps, half.roots)


def exchanged(places: Sequence[int], factors: Sequence[int]) -> Halves:
    """In round i places that differ only in digit i of the mixed radix `factors` exchange their parts. The first digit
    of a place is the most significant one of its chunk, so that every part is a range of chunks."""
    count, steps = len(places), []
    for digit, base in enumerate(factors):
        stride, size = prod(factors[:digit]), count // prod(factors[: digit + 1])
        for shift in range(1, base):
            step = []
            for at in range(count):
                own = at // stride % base
                peer = at + ((own + shift) % base - own) * stride
                first = _chunk(peer, factors) // size * size
                step.append(ChunkMessage(places[at], places[peer], first, first + size))
            steps.append(step)
    roots = [0] * count
    for at in range(count):
        roots[_chunk(at, factors)] = places[at]
    return Halves(steps, roots)


def _chunk(at: int, factors: Sequence[int]) -> int:
    """The number whose digits are those of `at`, in reverse."""
    chunk = 0
    for base in factors:
        chunk, at = chunk * base + at % base, at // base
    return chunk


def summed_up(trees: Sequence[Sequence[Edge]]) -> Halves:
    """Chunk t goes up tree t, from the leaves to the root; children of one place one after the other."""
    steps = [_up(chunk, edges) for chunk, edges in enumerate(trees)]
    together = [[message for step in each for message in step] for each in zip_longest(*steps, fillvalue=[])]
    return Halves(together, [edges[0][0] if edges else 0 for edges in trees])


def _up(chunk: int, edges: Sequence[Edge]) -> list[Step]:
    depth: dict[int, int] = defaultdict(int)
    sibling: dict[int, int] = defaultdict(int)
    by_turn: dict[tuple[int, int], Step] = defaultdict(list)
    for parent, child in edges:
        depth[child] = depth[parent] + 1
        by_turn[-depth[child], sibling[parent]].append(ChunkMessage(child, parent, chunk, chunk + 1))
        sibling[parent] += 1
    return [by_turn[turn] for turn in sorted(by_turn)]


def _decisions(ranks: int, half: list[Step], roots: list[int], size_bytes: int) -> CollectiveDecisions:
    back = [[ChunkMessage(dst, src, *span) for src, dst, *span in step] for step in reversed(half)]
    transfers, now = [], 0
    for number, step in enumerate([*half, *back]):
        for src, dst, first, last in step:
            end = now + last - first
            transfers += [
                Transfer(chunk, src, dst, now, end, number, number < len(half)) for chunk in range(first, last)
            ]
        now += max(last - first for *_, first, last in step)
    chunk_bytes = max(1, -(-size_bytes // len(roots)))
    return CollectiveDecisions(
        collective="allreduce",
        ranks=ranks,
        chunkup=1,
        chunk_bytes=chunk_bytes,
        input_bytes=chunk_bytes * len(roots),
        roots=tuple(roots),
        links=tuple(LinkCost(src, dst, "host", 0, 1) for src, dst in sorted({(m.src, m.dst) for m in transfers})),
        transfers=tuple(transfers),
        makespan_ns=now,
    )
