"""Groups and options of least time by branch and bound, for a few gradients.

Groups are chosen from the first gradient on, each with one of its options. A prefix is cut if one of these takes as
long as the best plan: the steps of a group in a row after the backward pass up to its last gradient; a resource's work
of the prefix and the least that the rest adds to it, after the first release for all but the device, which also has the
backward pass. All hold for every schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from treadle.planner.passes.compression.candidates import PricedOption
from treadle.planner.passes.compression.decisions import GradientGroup, Groups
from treadle.planner.passes.compression.evaluator import Evaluator
from treadle.planner.passes.compression.problem import CompressionProblem
from treadle.planner.search.clock import Expired, never

RESOURCES = ("device", "host", "intra", "inter")


@dataclass(frozen=True)
class ExactGroups:
    """The best groups. complete: nothing takes less, unless the limit of nodes or the clock ended the search."""

    groups: Groups
    ns: int
    nodes: int
    complete: bool


@dataclass(frozen=True)
class _Branch:
    """One option of one range of gradients: its group, work of each resource, time of all its steps."""

    group: GradientGroup
    work: tuple[int, ...]
    chain: int


def exact(
    problem: CompressionProblem,
    evaluator: Evaluator,
    choices: Callable[[int, int], Sequence[PricedOption]],
    start: Groups,
    *,
    node_limit: int,
    expired: Expired = never,
) -> ExactGroups:
    """The best of all partitions with `choices(first, last)` for each group, or `start` if nothing takes less.

    node_limit: how many prefixes are looked at.
    """
    count = len(problem.gradients)
    passed = list(accumulate((gradient.backward_ns for gradient in problem.gradients), initial=0))
    branches = [[_branches(first, last, choices) for last in range(count)] for first in range(count)]
    least = _least(count, branches)
    tail = [min((b.chain for first in range(k, count) for b in branches[first][-1]), default=0) for k in range(count)]
    best, best_ns = start, evaluator.time(start) - problem.forward_ns
    nodes, complete = 0, True

    def bound(first: int, work: Sequence[int], released: int) -> int:
        total = [mine + rest for mine, rest in zip(work, least[first], strict=True)]
        hosts = -(-total[1] // problem.host_workers)
        end = passed[count] + tail[first] if first < count else 0
        return max(passed[count] + total[0], end, *(released + each for each in (hosts, *total[2:])))

    def extended(first: int, groups: Groups, work: tuple[int, ...], chain: int) -> None:
        nonlocal best, best_ns, nodes, complete
        if first == count:
            ns = evaluator.time(groups, best_ns + problem.forward_ns) - problem.forward_ns
            if ns < best_ns:
                best, best_ns = groups, ns
            return
        for last in range(first, count):
            for branch in branches[first][last]:
                if nodes >= node_limit or (nodes % 256 == 0 and expired()):
                    complete = False
                    return
                nodes += 1
                total = tuple(mine + its for mine, its in zip(work, branch.work, strict=True))
                longest = max(chain, passed[last + 1] + branch.chain)
                released = passed[groups[0].last + 1 if groups else last + 1]
                if max(longest, bound(last + 1, total, released)) < best_ns:
                    extended(last + 1, (*groups, branch.group), total, longest)

    extended(0, (), (0,) * len(RESOURCES), 0)
    return ExactGroups(best, best_ns + problem.forward_ns, nodes, complete)


def _branches(first: int, last: int, choices: Callable[[int, int], Sequence[PricedOption]]) -> list[_Branch]:
    """The options of a range, those of shorter steps first."""
    if last < first:
        return []
    found = [
        _Branch(
            GradientGroup(first=first, last=last, compressor=option.compressor, steps=option.steps),
            tuple(sum(work.ns for work in option.works if name in work.resources) for name in RESOURCES),
            sum(work.ns for work in option.works),
        )
        for option in choices(first, last)
    ]
    return sorted(found, key=lambda branch: branch.chain)


def _least(count: int, branches: Sequence[Sequence[Sequence[_Branch]]]) -> list[list[int]]:
    """For the gradients from each one on the least work of each resource, over all partitions and options."""
    found = [[0] * len(RESOURCES) for _ in range(count + 1)]
    for first in reversed(range(count)):
        for place in range(len(RESOURCES)):
            found[first][place] = min(
                branch.work[place] + found[last + 1][place]
                for last in range(first, count)
                for branch in branches[first][last]
            )
    return found
