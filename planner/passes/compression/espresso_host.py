"""Algorithm 4.2 of Espresso: which of the gradients compressed on the device are compressed on the host instead.

"Hi-Speed DNN Training with Espresso: Unleashing the Full Potential of Gradient Compression with Near-Optimal Usage
Strategies", section 4.7.3.

Gradients of one size and option are alike; of them the first of the backward pass are moved (Lemma 4.1), so that there
are as many choices as the product of one more than each number of those alike. The result is the best among these
choices and no more: the first gradient sent starts the links, and to slow it may be worse than to slow a later one.
`any_subset` therefore tries every subset of up to 12 gradients, and else every change of one and every swap of two that
are alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, combinations, product
from math import prod

from treadle.planner.passes.compression.decisions import GradientGroup, Groups
from treadle.planner.passes.compression.evaluator import Evaluator
from treadle.planner.search.clock import Expired, never

MOST_CHOICES = 1_000_000
"""Choices that are all tried in the published form; of more, one set of gradients that are alike after the other."""
FEW_CHOICES = 5_000
"""The same where a search goes on after it."""
MOST_SUBSETS_OF = 12

Movable = Mapping[int, GradientGroup]
"""The groups that could move to the host, as they would be there."""


@dataclass(frozen=True)
class Offloaded:
    """Groups with their time. tried: choices that were priced; these are all if `whole`."""

    groups: Groups
    ns: int
    tried: int
    whole: bool


def movable(evaluator: Evaluator, groups: Groups) -> Movable:
    """The groups that are compressed on the device only and have their compressor on the host as well."""
    names = {cost.name for cost in evaluator.problem.compressors if cost.place == "host"}
    return {
        place: GradientGroup(
            first=group.first,
            last=group.last,
            compressor=group.compressor,
            steps=tuple(step.replace("@device", "@host") for step in group.steps),
        )
        for place, group in enumerate(groups)
        if group.compressor in names and not any(step.endswith("@host") for step in group.steps)
    }


def alike(evaluator: Evaluator, groups: Groups, hosts: Movable) -> tuple[tuple[int, ...], ...]:
    """Places of the groups that could move, those of one size and option together, in their order."""
    found: dict[object, list[int]] = {}
    for place in hosts:
        group = groups[place]
        sizes = [gradient.elements for gradient in evaluator.problem.gradients[group.first : group.last + 1]]
        found.setdefault((sum(sizes), len(sizes) > 1, group.compressor, group.steps), []).append(place)
    return tuple(tuple(places) for places in found.values())


def offload(evaluator: Evaluator, groups: Groups, *, most: int = FEW_CHOICES, expired: Expired = never) -> Offloaded:
    """Algorithm 4.2, over all choices if there are up to `most`. Ties keep the choice that was tried before, nothing on
    the host first of all."""
    hosts = movable(evaluator, groups)
    sets = alike(evaluator, groups, hosts)
    best, ns, tried = groups, evaluator.hold(groups), 1
    whole = prod(len(places) + 1 for places in sets) <= most
    choices = _all(sets) if whole else ()
    for counts in choices:
        if expired():
            return Offloaded(best, ns, tried, whole=False)
        trial = _moved(groups, hosts, chain(*(places[:count] for places, count in zip(sets, counts, strict=True))))
        found, tried = evaluator.time(trial, ns), tried + 1
        if found < ns:
            best, ns = trial, found
    improving = not whole
    while improving:
        improving = False
        for places in sets:
            rest = _moved(best, dict(zip(places, (groups[place] for place in places), strict=True)), places)
            for count in range(len(places) + 1):
                if expired():
                    return Offloaded(best, ns, tried, whole=False)
                trial = _moved(rest, hosts, places[:count])
                found, tried = evaluator.time(trial, ns), tried + 1
                if found < ns:
                    best, ns, improving = trial, evaluator.hold(trial), True
    return Offloaded(best, ns, tried, whole)


def any_subset(evaluator: Evaluator, groups: Groups, start: Groups, *, expired: Expired = never) -> Groups:
    """The best subset of `groups` to move to the host where it has up to 12 members; otherwise `start`, which moves
    some, until no change of one and no swap of two that are alike improves it. Never worse than `start`."""
    hosts = movable(evaluator, groups)
    best, ns = start, evaluator.hold(start)
    if len(hosts) <= MOST_SUBSETS_OF:
        for places in chain.from_iterable(combinations(hosts, size) for size in range(len(hosts) + 1)):
            if expired():
                return best
            trial = _moved(groups, hosts, places)
            found = evaluator.time(trial, ns)
            if found < ns:
                best, ns = trial, found
        return best
    swaps = [pair for places in alike(evaluator, groups, hosts) for pair in combinations(places, 2)]
    improving = True
    while improving:
        improving = False
        for change in (*((place,) for place in hosts), *swaps):
            on_device = [best[place] != hosts[place] for place in change]
            if on_device == [True, True] or on_device == [False, False]:
                continue
            if expired():
                return best
            other = {place: hosts[place] if on_device[n] else groups[place] for n, place in enumerate(change)}
            trial = _moved(best, other, change)
            found = evaluator.time(trial, ns)
            if found < ns:
                best, ns, improving = trial, evaluator.hold(trial), True
    return best


def _all(sets: tuple[tuple[int, ...], ...]) -> Iterable[tuple[int, ...]]:
    """How many of each set move, without the choice that moves none."""
    return (counts for counts in product(*(range(len(places) + 1) for places in sets)) if any(counts))


def _moved(groups: Groups, others: Movable, places: Iterable[int]) -> Groups:
    """The groups with those of `others` at `places`."""
    changed = list(groups)
    for place in places:
        changed[place] = others[place]
    return tuple(changed)
