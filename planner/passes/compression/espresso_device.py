"""Algorithm 4.1 of Espresso: one gradient after the other takes the option with which the iteration is shortest.

"Hi-Speed DNN Training with Espresso: Unleashing the Full Potential of Gradient Compression with Near-Optimal Usage
Strategies", section 4.7.2.

Large gradients come first, of those of one size the last of the backward pass (Property 2). What is sent uncompressed
before a bubble, a time at which no link is busy, stays as it is, since sent sooner it would only widen the bubble
(Property 1). With two links that is a heuristic: first come, first served, a change before a bubble may reorder what
comes after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from treadle.planner.passes.compression.candidates import Named, allowed, named_options, trees
from treadle.planner.passes.compression.decisions import GradientGroup, Groups
from treadle.planner.passes.compression.evaluator import Evaluator
from treadle.planner.passes.compression.options import compressions
from treadle.planner.passes.compression.problem import CompressionProblem
from treadle.planner.search.clock import Expired, never


@dataclass(frozen=True)
class Assigned:
    """Groups with their time, and how many gradients a bubble left uncompressed."""

    groups: Groups
    ns: int
    before_bubbles: int = 0


def by_gradient(problem: CompressionProblem, named: Named) -> Groups:
    """A group for each gradient, all with one option."""
    return tuple(
        GradientGroup(first=place, last=place, compressor=named[0], steps=named[1])
        for place in range(len(problem.gradients))
    )


def with_option(groups: Groups, place: int, named: Named) -> Groups:
    """The groups with another option for one of them."""
    group = groups[place]
    other = GradientGroup(first=group.first, last=group.last, compressor=named[0], steps=named[1])
    return (*groups[:place], other, *groups[place + 1 :])


def published_options(problem: CompressionProblem, name: str | None = None) -> tuple[Named, ...]:
    """The options of the tree that compress on the device with one compressor, by default the first of the problem, 165
    on nodes of several ranks; the fixed uncompressed one comes on top."""
    name = name or next(iter(problem.names), None)
    if not any(cost.name == name and cost.place == "device" for cost in problem.compressors):
        return ()
    found = (steps for steps in trees(problem, ("device",)) if compressions(steps) and allowed(problem, steps))
    return tuple((name, steps) for steps in found)


def options_on(problem: CompressionProblem, place: str) -> tuple[Named, ...]:
    """All options, of every compressor and of none, that compress nowhere but there."""
    return tuple(named_options(problem, (place,)))


def in_order(problem: CompressionProblem, groups: Groups) -> list[int]:
    """Places of groups in the order of Property 2."""
    sizes = [problem.elements(group.first, group.last) for group in groups]
    return sorted(range(len(groups)), key=lambda place: (-sizes[place], -place))


def greedily(
    evaluator: Evaluator,
    start: Groups,
    options: tuple[Named, ...],
    *,
    bubble_pruning: bool = True,
    only: Callable[[GradientGroup], bool] = lambda group: True,
    expired: Expired = never,
) -> Assigned:
    """Algorithm 4.1 from `start` on: each group for which `only` holds takes its best option. Ties keep what a group
    has, then the first option. Stops early once `expired`."""
    groups = start
    ns = evaluator.hold(groups)
    order = [place for place in in_order(evaluator.problem, groups) if only(groups[place])]
    left = set(order)
    dropped = _before_bubble(evaluator, left) if bubble_pruning else set()
    left -= dropped
    for place in order:
        if place not in left or expired():
            continue
        left.remove(place)
        found = evaluator.improved(place, options, ns)
        if found is None:
            continue
        groups = with_option(groups, place, options[found[1]])
        ns = evaluator.hold(groups)
        if bubble_pruning:
            new = _before_bubble(evaluator, left)
            left -= new
            dropped |= new
    return Assigned(groups, ns, len(dropped))


def _before_bubble(evaluator: Evaluator, places: set[int]) -> set[int]:
    """Those of the groups held that are uncompressed and have been sent when the last bubble begins."""
    if not evaluator.bubble_ns:
        return set()
    ended = evaluator.ended_ns()
    return {
        place for place in places if evaluator.groups[place].compressor is None and ended[place] <= evaluator.bubble_ns
    }
