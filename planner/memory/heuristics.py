"""Plans found without a solver: Chen's segments and greedy eviction. They start the solver and stand in for it.

A plan follows from the set of nodes that the forward pass keeps: when a backward node reads something that is gone,
its ancestors are recomputed from what is there, and everything recomputed that later backward nodes read directly
stays ("Training Deep Nets with Sublinear Memory Cost", section 3, with segments between kept nodes).
"""

from __future__ import annotations

from planner.memory.lower import Schedule, lower, prune, store_all
from planner.memory.problem import MemoryProblem
from planner.memory.program import RunForward
from planner.memory.simulate import Simulation, simulate

Candidate = tuple[Simulation, Schedule]


def best_heuristic(problem: MemoryProblem) -> Schedule | None:
    """The fastest heuristic plan within the budget, pruned; None when all of them need more."""
    everything = store_all(problem)
    whole = simulate(problem, lower(problem, everything))
    if whole.peak_bytes <= problem.budget_bytes:
        return everything
    found = [plan for start in (chen(problem), greedy(problem)) if (plan := refilled(problem, start))]
    return min(found, key=lambda plan: plan[0].time_ns)[1] if found else None


def refilled(problem: MemoryProblem, plans: list[Candidate]) -> Candidate | None:
    """The fastest of `plans` within the budget, then everything kept besides that still fits and saves time."""
    fitting = [plan for plan in plans if plan[0].peak_bytes <= problem.budget_bytes]
    if not fitting:
        return None
    best = min(fitting, key=lambda plan: plan[0].time_ns)
    kept = best[1].kept[0]
    again = {run.node for stage in best[1].runs[1:] for run in stage}
    for i in sorted(again - kept, key=lambda i: (-problem.fwd[i].impls[0].time_ns, i)):
        plan = _plan(problem, kept | {i})
        if plan[0].peak_bytes <= problem.budget_bytes and plan[0].time_ns < best[0].time_ns:
            best, kept = plan, kept | {i}
    return best


def chen(problem: MemoryProblem) -> list[Candidate]:
    """One plan for each number of segments up to N, twice sqrt(N) at most: cut where equal shares of bytes are made."""
    total = sum(node.out_bytes for node in problem.fwd)
    plans = []
    for segments in range(1, 2 * int(len(problem.fwd) ** 0.5) + 2):
        made = 0
        ends = set()
        for i, node in enumerate(problem.fwd):
            before, made = made * segments // max(1, total), made + node.out_bytes
            if made * segments // max(1, total) > before:
                ends.add(i)
        plans.append(_plan(problem, frozenset(ends)))
    return plans


def greedy(problem: MemoryProblem) -> list[Candidate]:
    """Evict from what store-all keeps, most bytes per recomputation time first, until the budget holds."""
    kept = set(store_all(problem).kept[0])

    def worth(i: int) -> float:
        node = problem.fwd[i]
        return node.out_bytes / max(1, min(impl.time_ns for impl in node.impls))

    order = sorted(kept - once_only(problem), key=lambda i: (-worth(i), i))
    plans: list[Candidate] = []
    for i in order:
        kept.discard(i)
        plans.append(_plan(problem, frozenset(kept)))
        if plans[-1][0].peak_bytes <= problem.budget_bytes:
            break
    return plans


def once_only(problem: MemoryProblem) -> frozenset[int]:
    """Nodes that cannot be made again, by themselves or because their creator cannot run again."""
    fixed = {i for i, node in enumerate(problem.fwd) if not node.recomputable}
    return frozenset(fixed | {i for i, node in enumerate(problem.fwd) if node.creator in fixed})


def _plan(problem: MemoryProblem, kept: frozenset[int]) -> Candidate:
    schedule = prune(problem, recompute_from(problem, kept))
    return simulate(problem, lower(problem, schedule)), schedule


def recompute_from(problem: MemoryProblem, kept: frozenset[int]) -> Schedule:
    """The schedule in which the forward pass keeps `kept` (and what cannot be recomputed)."""
    base = store_all(problem)
    fastest = {run.node: run for run in base.runs[0]}
    direct: list[set[int]] = [set()]
    for stage in range(len(problem.bwd), 0, -1):
        direct.append(direct[-1] | set(base.needs(problem, stage)))
    direct.reverse()
    available = kept | (once_only(problem) & fastest.keys())
    runs: list[tuple[RunForward, ...]] = [base.runs[0]]
    stores = [available]
    for stage in range(1, len(problem.bwd) + 1):
        again: set[int] = set()
        todo = list(base.needs(problem, stage))
        while todo:
            i = todo.pop()
            if i not in available and i not in again:
                again.add(i)
                creator = problem.fwd[i].creator
                todo.extend(problem.fwd[i].inputs)
                if creator is not None:
                    again.add(creator)
                    todo.extend(problem.fwd[creator].inputs)
        runs.append(tuple(fastest[i] for i in sorted(again)))
        available |= again & direct[stage]
        stores.append(available)
    return Schedule(tuple(runs), tuple(stores), base.backward)
