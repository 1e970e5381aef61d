"""The messages of a scheme: rounds, in each of which participants send what they hold of parts to others.

A hop carries what `workers` contributed to a part: added up into one payload by incremental schemes, one payload for
each of them by one-shot schemes. Rounds of the pull carry sums of whole parts. What the runtime executes and what
`traffic` counts are these rounds.
"""

from __future__ import annotations

from typing import NamedTuple

from treadle.planner.passes.sparse.schemes import Scheme


class SparseHop(NamedTuple):
    """One message of a round. `workers` is empty for the sum of a part."""

    src: int
    dst: int
    part: int
    workers: tuple[int, ...] = ()


Rounds = tuple[tuple[SparseHop, ...], ...]


class SparseRounds(NamedTuple):
    """`parts` parts, of which part p is added up at participant p; 1 part that everyone adds up if centralized."""

    parts: int
    push: Rounds
    pull: Rounds


def exchange(scheme: Scheme, participants: int) -> SparseRounds:
    """The rounds of a scheme between participants 0 to `participants` - 1."""
    n = participants
    if scheme.communication == "hierarchy":
        return _hierarchy(scheme, n)
    whole = scheme.partition == "centralized"
    if scheme.communication == "point-to-point":
        push = tuple(SparseHop(src, dst, 0 if whole else dst, (src,)) for src in range(n) for dst in _others(src, n))
        pull = tuple(SparseHop(src, dst, src) for src in range(n) for dst in _others(src, n))
        return SparseRounds(1 if whole else n, _some(push), () if whole else _some(pull))
    return _ring(scheme, n)


def _others(rank: int, n: int) -> list[int]:
    """All others, beginning with the next one, so that not everyone sends to the same one first."""
    return [(rank + step) % n for step in range(1, n)]


def _some(hops: tuple[SparseHop, ...]) -> Rounds:
    return (hops,) if hops else ()


def _ring(scheme: Scheme, n: int) -> SparseRounds:
    whole, incremental = scheme.partition == "centralized", scheme.aggregation == "incremental"
    push = []
    for step in range(1, n):
        hops = []
        for src in range(n):
            dst = (src + 1) % n
            if whole:
                held = tuple((src - back) % n for back in range(step)) if incremental else ((src - step + 1) % n,)
                hops.append(SparseHop(src, dst, 0, held))
            elif incremental:
                # Part p sets out from the participant after its owner.
                part = (src - step) % n
                hops.append(SparseHop(src, dst, part, tuple((part + after) % n for after in range(1, step + 1))))
            else:
                # What worker `origin` contributed to the parts of those it has not passed yet.
                origin = (src - step + 1) % n
                hops += [SparseHop(src, dst, (origin + far) % n, (origin,)) for far in range(step, n)]
        push.append(tuple(hops))
    pull = []
    if not whole:
        for step in range(n - 1):
            pull.append(tuple(SparseHop(src, (src + 1) % n, (src - step) % n) for src in range(n)))
    return SparseRounds(1 if whole else n, tuple(push), tuple(pull))


def _hierarchy(scheme: Scheme, n: int) -> SparseRounds:
    """Partners at doubling distances; participants beyond a power of two first hand theirs to one below it, and get
    the sum in the end."""
    whole, incremental = scheme.partition == "centralized", scheme.aggregation == "incremental"
    core = 1 << (n.bit_length() - 1)
    parts = 1 if whole else core
    extra = range(core, n)
    held = {rank: (rank, *([rank + core] if rank + core < n else [])) for rank in range(core)}
    push: list[tuple[SparseHop, ...]] = []
    push += _some(tuple(SparseHop(rank, rank - core, part, (rank,)) for rank in extra for part in range(parts)))
    pull: list[tuple[SparseHop, ...]] = []
    if whole:
        distance = 1
        while distance < core:
            push.append(
                tuple(hop for rank in range(core) for hop in _carried(rank, rank ^ distance, 0, held, incremental))
            )
            held = {rank: tuple(sorted(held[rank] + held[rank ^ distance])) for rank in range(core)}
            distance *= 2
    else:
        kept = {rank: list(range(core)) for rank in range(core)}
        distance = core // 2
        while distance:
            hops = []
            for rank in range(core):
                partner = rank ^ distance
                given = [part for part in kept[rank] if not (part ^ partner) & distance]
                hops += [hop for part in given for hop in _carried(rank, partner, part, held, incremental)]
            push.append(tuple(hops))
            kept = {rank: [part for part in kept[rank] if not (part ^ rank) & distance] for rank in range(core)}
            held = {rank: tuple(sorted(held[rank] + held[rank ^ distance])) for rank in range(core)}
            distance //= 2
        distance = 1
        while distance < core:
            block = [range(rank & ~(distance - 1), (rank & ~(distance - 1)) + distance) for rank in range(core)]
            pull.append(tuple(SparseHop(rank, rank ^ distance, part) for rank in range(core) for part in block[rank]))
            distance *= 2
    pull += _some(tuple(SparseHop(rank - core, rank, part) for rank in extra for part in range(parts)))
    return SparseRounds(parts, tuple(push), tuple(pull))


def _carried(src: int, dst: int, part: int, held: dict[int, tuple[int, ...]], incremental: bool) -> list[SparseHop]:
    """What `src` holds of a part: one payload, or one for each worker."""
    return (
        [SparseHop(src, dst, part, held[src])]
        if incremental
        else [SparseHop(src, dst, part, (each,)) for each in held[src]]
    )
