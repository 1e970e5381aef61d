"""Groups, options and compressors decided together: never worse than any plan that it begins from.

It begins from the plans of Espresso, of Cupcake and of all baselines, adds those of a dynamic program over boundaries,
and improves the best by local search, at last from random changes of it. Every plan is priced by the one timeline.
For a few gradients branch and bound over all groups and options proves the best, or finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from treadle.planner.passes.compression.candidates import Named, PricedOption, named_options
from treadle.planner.passes.compression.decisions import Groups
from treadle.planner.passes.compression.evaluator import Evaluator
from treadle.planner.passes.compression.exact import ExactGroups, exact
from treadle.planner.passes.compression.front import through_boundaries
from treadle.planner.passes.compression.local_search import improved, shaken
from treadle.planner.passes.compression.problem import CompressionProblem

IMPROVED = 2
"""Plans that the local search begins from in a round."""
ROUNDS = 3
"""Each round has a new front, by the rates of the best plan."""
BRANCHES = 10_000
"""All groups and options are searched where all ranges of gradients have at most as many options together."""
NODE_LIMIT = 100_000
"""Prefixes of groups that branch and bound looks at."""


@dataclass(frozen=True)
class Joint:
    """The best groups; `exact` if branch and bound ran."""

    groups: Groups
    ns: int
    exact: ExactGroups | None


class _Best:
    """The best groups that were offered, and of equal times the fewest; `found` is called with each better one."""

    def __init__(self, groups: Groups, evaluator: Evaluator, found: Callable[[Groups, int], None]) -> None:
        self.groups, self.ns, self.found = groups, evaluator.time(groups), found

    def offer(self, groups: Groups, ns: int) -> None:
        if (ns, len(groups)) < (self.ns, len(self.groups)):
            self.groups, self.ns = groups, ns
            self.found(groups, ns)


def joint(
    problem: CompressionProblem,
    evaluator: Evaluator,
    starts: Mapping[str, Groups],
    options: Sequence[Named],
    *,
    stopped: Callable[[], bool],
    offer: Callable[[Groups, int], None],
) -> Joint:
    """The best groups found from `starts`, of which there is at least one, and of equal times the fewest; `offer` is
    called with each better plan. options: those that searches choose from."""
    best = _Best(rounds(problem, evaluator, starts, options, stopped=stopped, offer=offer), evaluator, offer)

    def choices(first: int, last: int) -> Sequence[PricedOption]:
        if not problem.fits(first, last):
            return ()
        return evaluator.candidates(problem.elements(first, last), last - first + 1)

    found = None
    if _branches(problem) <= BRANCHES and not stopped():
        found = exact(problem, evaluator, choices, best.groups, node_limit=NODE_LIMIT, expired=stopped)
        best.offer(found.groups, found.ns)
    if found is None or not found.complete:
        shaken(problem, evaluator, best.groups, options, stopped=stopped, offer=best.offer)
    return Joint(best.groups, best.ns, found)


def rounds(
    problem: CompressionProblem,
    evaluator: Evaluator,
    starts: Mapping[str, Groups],
    options: Sequence[Named],
    *,
    stopped: Callable[[], bool],
    offer: Callable[[Groups, int], None],
) -> Groups:
    """The best groups of dynamic programs and local search alone; otherwise as `joint`."""
    best = _Best(min(starts.values(), key=evaluator.time), evaluator, offer)
    tried: set[Groups] = set()
    for _ in range(ROUNDS):
        before = best.groups
        pool = {groups: evaluator.time(groups) for groups in starts.values()}
        if not stopped():
            pool |= {groups: evaluator.time(groups) for groups in through_boundaries(problem, before, options, stopped)}
        for groups in sorted((each for each in pool if each not in tried), key=lambda each: pool[each])[:IMPROVED]:
            best.offer(groups, pool[groups])
            tried.add(groups)
            improved(problem, evaluator, groups, options, stopped=stopped, offer=best.offer)
        if best.groups is before or stopped():
            break
    return best.groups


def _branches(problem: CompressionProblem) -> int:
    """How many options all ranges of gradients have together."""
    count = len(problem.gradients)
    return count * (count + 1) // 2 * sum(1 for _ in named_options(problem))
