"""Times of a scheme, counted again for the checker in exact fractions, each rounded once, halves up."""

from __future__ import annotations

from fractions import Fraction
from math import floor
from typing import Literal

from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.passes.sparse.check_bytes import ExchangeSize, exchange_size
from treadle.planner.passes.sparse.decisions import HashSlots, SchemeCost
from treadle.planner.passes.sparse.problem import SparseGradient, SparseProblem
from treadle.planner.passes.sparse.schemes import SCHEMES, Scheme

MEBIBYTE = 1 << 20
SPARE_SLOTS = 2
"""Slots for each index of the densest participant."""
SERIAL_SHARE = 10
"""One serial slot for as many others."""


def priced_schemes(gradient: SparseGradient) -> list[Scheme]:
    """All schemes whose messages the problem can count."""
    return [scheme for scheme in SCHEMES if gradient.blocks is not None or scheme.push != "blocks"]


def counted_cost(problem: SparseProblem, gradient: SparseGradient, scheme: Scheme) -> SchemeCost:
    """What exchanging the gradient by the scheme takes. The problem must be free of findings."""
    size = exchange_size(problem, gradient, scheme)
    link = link_ns(problem, size.messages, size.bytes)
    taken = _half_up(_within_nodes(problem, gradient) + _work(problem, gradient, size)) + link
    return SchemeCost(scheme=scheme.name, time_ns=taken, link_ns=link, bytes=size.bytes)


def counted_least(problem: SparseProblem, gradient: SparseGradient, cheapest: int) -> int:
    """A time that no scheme can beat: everyone gets at least what all others have, and writes the sum."""
    n = problem.machines
    if n == 1:
        return cheapest
    others = 4 * gradient.width * gradient.unions[n - 2]
    written = _written(problem, gradient) * gradient.width
    rest = Fraction(problem.work.write_per_value) * written + Fraction(problem.work.call)
    return min(cheapest, _half_up(_within_nodes(problem, gradient) + rest) + link_ns(problem, 1, others))


def favoured(gradient: SparseGradient, n: int) -> Literal["hierarchy", "balanced", "tie"]:
    """Which of two schemes sends fewer entries, from unions alone; both sides are multiplied by n times a union."""
    first, last = gradient.unions[0], gradient.unions[n - 1]
    parts, tree, participants = (n - 1) * (first + last), 0, 1
    while participants < n:
        tree += n * gradient.unions[participants - 1]
        participants *= 2
    if parts == tree:
        return "tie"
    return "balanced" if parts < tree else "hierarchy"


def counted_slots(gradient: SparseGradient, parts: int) -> HashSlots:
    """Hash memory of each part."""
    slots = max(1, -(-SPARE_SLOTS * gradient.densest // parts))
    return HashSlots(slots=slots, serial=max(1, -(-slots // SERIAL_SHARE)))


def link_ns(problem: SparseProblem, messages: int, sent: int) -> int:
    """ns between nodes: the link is that of a whole node, all of whose ranks send as much; messages are shared by all
    gradients."""
    if problem.machines == 1 or problem.inter is None:
        return 0
    return _half_up(_link(problem.inter, Fraction(messages, len(problem.gradients)), Fraction(problem.devices * sent)))


def _link(link: GradientLink, messages: Fraction, sent: Fraction) -> Fraction:
    return 1000 * (Fraction(link.alpha_us) * messages + Fraction(link.beta_us_per_MB) * sent / MEBIBYTE)


def _within_nodes(problem: SparseProblem, gradient: SparseGradient) -> Fraction:
    """A reduce-scatter and an allgather: all values of a dense gradient, or counted entries of another."""
    others = problem.devices - 1
    if not others or problem.intra is None:
        return Fraction(0)
    if gradient.form == "dense":
        sent = others * 4 * gradient.width * problem.shard(gradient)
        return 2 * _link(problem.intra, Fraction(others), Fraction(sent))
    entries = min(gradient.unions[0], gradient.occurrences) + gradient.unions[-1]
    sent = others * (2 * 4 + entries * (4 + 4 * gradient.width))
    return _link(problem.intra, Fraction(4 * others), Fraction(sent))


def _written(problem: SparseProblem, gradient: SparseGradient) -> int:
    """Units that are written in the end: all of a dense gradient, the non-zero ones of all shards of another."""
    return gradient.units if gradient.form == "dense" else _entries_of_sum(problem, gradient)


def _entries_of_sum(problem: SparseProblem, gradient: SparseGradient) -> int:
    return min(gradient.units, problem.devices * gradient.unions[-1])


def _work(problem: SparseProblem, gradient: SparseGradient, size: ExchangeSize) -> Fraction:
    """ns of the kernels of the busiest rank."""
    if problem.ranks == 1:
        return Fraction(0)
    scheme, rates, w, one = size.scheme, problem.work, size.width, size.union[1]
    added = _added(size)
    counts: list[tuple[float, int]] = [
        (rates.add_per_value, added * w),
        (rates.add_per_entry, 0 if scheme.push == "dense" else added),
        (rates.call, size.rounds),
        (rates.write_per_value, _written(problem, gradient) * w),
    ]
    if gradient.form == "coo":
        entries = gradient.occurrences
        counts += [(rates.coalesce_per_value, entries * w), (rates.coalesce_per_entry, entries)]
        if scheme.push == "dense":
            # Made dense, and sparse again.
            counts += [
                (rates.write_per_value, size.shard * w),
                (rates.write_per_entry, one),
                (rates.scan_per_value, size.shard * w),
            ]
    if scheme.push != "dense" or gradient.form == "coo":
        counts.append((rates.write_per_entry, _entries_of_sum(problem, gradient)))
    if scheme.push == "dense":
        return _summed(counts)
    if gradient.form == "dense":
        counts.append((rates.scan_per_value, size.shard * w))
    if scheme.balance == "balanced":
        slots = counted_slots(gradient, size.parts)
        counts += [
            (rates.hash_per_index, one),
            (rates.extract_per_word, (slots.slots + slots.serial) * size.parts),
        ]
    sent = one if size.blocks is None else min(size.blocks.push * size.blocks.size * size.n, size.shard)
    counts += [
        (rates.gather_per_value, sent * w),
        (rates.gather_per_entry, sent),
        (rates.bitmap_per_unit, size.part + size.shard if scheme.pull == "bitmap" else 0),
    ]
    return _summed(counts)


def _added(size: ExchangeSize) -> int:
    """Units that the busiest participant adds up."""
    scheme, n, one = size.scheme, size.n, size.union[1]
    hierarchy, whole = scheme.communication == "hierarchy", scheme.partition == "centralized"
    if scheme.push == "dense":
        return n * size.part
    if size.blocks is not None:
        return n * min(size.blocks.push * size.blocks.size, size.part)
    if scheme.aggregation == "one-shot":
        return n * (one if whole else size.fullest_of_core(1) if hierarchy else size.fullest[1])
    if not hierarchy:
        held = size.union if whole else size.fullest
        return sum(held[1:n]) + (n - 1) * held[1]
    found, kept = 2 * one * size.folds, size.core
    for m in size.stages:
        kept //= 2
        # What arrives, and as much of its own.
        found += 2 * (size.union[m] if whole else min(kept * size.fullest_of_core(m), size.union[m]))
    return found


def _summed(counts: list[tuple[float, int]]) -> Fraction:
    return sum((Fraction(rate) * count for rate, count in counts if rate and count), Fraction(0))


def _half_up(time: Fraction) -> int:
    return floor(time + Fraction(1, 2))
