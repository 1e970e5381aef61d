"""Groups, options and compressors decided together: never worse than any plan that it begins from.

It begins from the plans of Espresso, of Cupcake and of all baselines, adds those of a dynamic program over boundaries,
and improves the best by local search. Every plan is priced by the one timeline. For a few gradients branch and bound
over all groups and options then proves the best, or finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from treadle.planner.passes.compression.evaluator import Evaluator
from treadle.planner.passes.compression.exact import Exact, exact
from treadle.planner.passes.compression.front import through_boundaries
from treadle.planner.passes.compression.local_search import Groups, improved
from treadle.planner.passes.compression.palette import palette
from treadle.planner.passes.compression.problem import CompressionProblem

IMPROVED = 2
"""Plans that the local search begins from."""
SMALL = 6
"""The most gradients for which all groups and options are searched."""
NODE_LIMIT = 200_000
"""Prefixes of groups that branch and bound looks at."""


@dataclass(frozen=True)
class Joint:
    """The best groups; `exact` if branch and bound ran."""

    groups: Groups
    ns: int
    exact: Exact | None


def joint(
    problem: CompressionProblem,
    evaluator: Evaluator,
    starts: Mapping[str, Groups],
    *,
    stopped: Callable[[], bool],
    offer: Callable[[Groups, int], None],
) -> Joint:
    """The best groups found from `starts`, of which there is at least one; `offer` is called with each better plan."""
    best = min(starts.values(), key=evaluator.time)
    best_ns = evaluator.time(best)

    def better(groups: Groups, ns: int) -> None:
        nonlocal best, best_ns
        if ns < best_ns:
            best, best_ns = groups, ns
            offer(groups, ns)

    if not stopped():
        options = palette(problem, evaluator)
        pool = [*starts.values(), *through_boundaries(problem, best, options, stopped)]
        unlike = {groups: evaluator.time(groups) for groups in pool}
        for groups, ns in unlike.items():
            better(groups, ns)
        for start in sorted(unlike, key=lambda groups: unlike[groups])[:IMPROVED]:
            improved(problem, evaluator, start, options, stopped=stopped, offer=better)
    found = None
    if len(problem.gradients) <= SMALL and not stopped():
        found = exact(problem, evaluator, lambda first, last: evaluator.candidates(
            sum(gradient.elements for gradient in problem.gradients[first : last + 1]), last - first + 1
        ), best, node_limit=NODE_LIMIT, expired=stopped)  # fmt: skip
        better(found.groups, found.ns)
    return Joint(best, best_ns, found)
