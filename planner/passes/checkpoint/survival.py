"""How likely a copy of every state is left when machines are lost at once, exactly.

A set of lost machines is fatal if it has all holders of some state. Parts of machines whose holder sets do not touch
are independent: their generating functions, in which the coefficient of x^k counts the sets of k that are not fatal,
multiply. That of a ring, or of a group, which is a ring as long as its holder sets, has a closed form; any other is
counted by inclusion and exclusion over unions of holder sets, where equal unions merge and larger ones than k drop out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from math import comb
from typing import Literal

import numpy as np

from treadle.planner.passes.checkpoint.decisions import Survival
from treadle.planner.passes.checkpoint.placement import Holders
from treadle.planner.passes.checkpoint.problem import CheckpointProblem
from treadle.planner.passes.checkpoint.sampled import sampled

MOST_EXACT = 2**53
"""Counts of sets stand in plans below this: JSON readers keep them."""
MOST_WORK = 20_000_000
"""Machines of all unions that are formed before an estimate takes the place of a count."""

Polynomial = list[int]
"""How many sets of 0, 1, ... members are not fatal."""


def survival(problem: CheckpointProblem, holders: Holders) -> tuple[Survival, ...]:
    """Machines lost, 1 to copies + 2, then failure domains, 1 and 2."""
    most = min(problem.machines, problem.copies + 2)
    found = [of_machines(holders, most)]
    if problem.domains:
        found.append(of_domains(holders, problem.domains, min(2, len(set(problem.domains)))))
    return tuple(survived for of_kind in found for survived in of_kind)


def of_machines(holders: Holders, most: int) -> Iterator[Survival]:
    """For 1 to `most` lost machines: counted as far as that is possible, which it is up to less than the holders of a
    state, estimated beyond."""
    kept: Polynomial | None = None
    for counted in range(most, -1, -1):
        if kept := kept_machines(holders, counted):
            break
    for lost in range(1, most + 1):
        if kept is None or lost >= len(kept):
            yield Survival(lost=lost, of="machines", **sampled(holders, lost)._asdict())
        else:
            yield _counted(lost, "machines", kept[lost], comb(len(holders), lost))


def of_domains(holders: Holders, domains: Sequence[int], most: int) -> Iterator[Survival]:
    """For 1 to `most` lost failure domains, at most 2."""
    kept = kept_domains(spans_of(holders, domains), len(set(domains)))
    for lost in range(1, most + 1):
        yield _counted(lost, "domains", kept[lost], comb(len(set(domains)), lost))


def _counted(lost: int, of: Literal["machines", "domains"], kept: int, sets: int) -> Survival:
    if sets >= MOST_EXACT:
        return Survival(lost=lost, of=of, probability=kept / sets)
    return Survival(lost=lost, of=of, probability=kept / sets, kept=kept, sets=sets)


def kept_machines(holders: Holders, most: int) -> Polynomial | None:
    """How many sets of 0 to `most` machines are not fatal; None where counting takes too long."""
    shapes: Counter[tuple[int, int]] = Counter()
    product = [1] + [0] * most
    for part in parts_of(holders):
        if in_ring_order(part, holders):
            shapes[len(part), len(holders[part[0]])] += 1
            continue
        kept = by_unions({frozenset(holders[machine]) for machine in part}, len(part), most)
        if kept is None:
            return None
        product = times(product, kept)
    for (length, copies), count in sorted(shapes.items()):
        product = times(product, power(ring_kept(length, copies, most), count))
    return product


def parts_of(holders: Holders) -> list[list[int]]:
    """Machines that holder sets connect, each part from its lowest machine along the second holders as far as these
    lead."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    machines, copies = len(holders), len(holders[0])
    edges = np.repeat(np.arange(machines), copies), np.asarray(holders).reshape(-1)
    links = csr_matrix((np.ones(machines * copies), edges), shape=(machines, machines))
    members: dict[int, list[int]] = {}
    for machine, label in enumerate(connected_components(links, directed=False)[1].tolist()):
        members.setdefault(label, []).append(machine)
    return [_walk(part, holders) for part in members.values()]


def _walk(machines: list[int], holders: Holders) -> list[int]:
    order, machine = [machines[0]], machines[0]
    while len(holders[machine]) > 1 and (machine := holders[machine][1]) != machines[0] and len(order) < len(machines):
        order.append(machine)
    return order if len(set(order)) == len(machines) else machines


def in_ring_order(part: Sequence[int], holders: Holders) -> bool:
    """Whether each machine of `part` is held by those after it, after its own copy."""
    return all(
        holder == part[(place + step) % len(part)]
        for place, machine in enumerate(part)
        for step, holder in enumerate(holders[machine])
    )


def ring_kept(length: int, copies: int, most: int) -> Polynomial:
    """Sets of 0 to `most` members of a ring with no `copies` in a row. length: at least `copies`.

    Each member that is left is followed by less than `copies` lost ones. Of such sequences of gaps each ring has as
    many, one for each member left, as each sequence has rings, one for each place of its first member.
    """
    kept = []
    for lost in range(most + 1):
        left = length - lost
        kept.append(length * gaps(left, lost, copies) // left if left > 0 else 0)
    return kept


def gaps(count: int, total: int, below: int) -> int:
    """Sequences of `count` numbers, each below `below`, that sum to `total`."""
    return sum(
        (-1) ** large * comb(count, large) * comb(count + total - below * large - 1, count - 1)
        for large in range(min(count, total // below) + 1)
    )


def by_unions(sets: Iterable[frozenset[int]], members: int, most: int) -> Polynomial | None:
    """Subsets of 0 to `most` of `members` that have none of `sets` whole; None past MOST_WORK."""
    unions: Counter[frozenset[int]] = Counter({frozenset(): 1})
    work = 0
    for fatal in sorted(sets, key=sorted):
        work += len(unions) * len(fatal)
        if work > MOST_WORK:
            return None
        for union, count in list(unions.items()):
            if len(larger := union | fatal) <= most:
                unions[larger] -= count
                if not unions[larger]:
                    del unions[larger]
    signed = Counter[int]()
    for union, count in unions.items():
        signed[len(union)] += count
    return [
        sum(count * comb(members - size, lost - size) for size, count in signed.items() if size <= lost)
        for lost in range(most + 1)
    ]


def spans_of(sets: Iterable[Iterable[int]], domains: Sequence[int]) -> set[frozenset[int]]:
    """The failure domains that each holder set is in."""
    return {frozenset(domains[holder] for holder in held) for held in sets}


def kept_domains(spans: Collection[frozenset[int]], count: int) -> Polynomial:
    """How many sets of 0, 1 and 2 of `count` failure domains are not fatal."""
    single = {span for span in spans if len(span) == 1}
    alone = count - len(single)  # other pairs are fatal only where a holder set spans both
    pairs = sum(len(span) == 2 and single.isdisjoint(map(frozenset, zip(span))) for span in spans)
    return [1, alone, comb(alone, 2) - pairs]


def times(left: Polynomial, right: Polynomial) -> Polynomial:
    """The product up to the length of the factors, which is the same."""
    return [sum(left[low] * right[lost - low] for low in range(lost + 1)) for lost in range(len(left))]


def power(base: Polynomial, exponent: int) -> Polynomial:
    """`base` multiplied `exponent` times, up to its length."""
    product = [1] + [0] * (len(base) - 1)
    for bit in f"{exponent:b}":
        product = times(product, product)
        if bit == "1":
            product = times(product, base)
    return product
