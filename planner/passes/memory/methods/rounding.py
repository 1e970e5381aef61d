"""The linear relaxation of the 0-1 program, rounded: plans of large problems from one linear program.

As in the two-phase rounding of "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization":

1. Solve the relaxation of the program of `restricted.py` in which every useful recomputation is allowed.
2. Round what is kept: x_i is kept after stage t where s_it is at least a threshold, one for all nodes or one drawn for
   each node. Take for each op the implementation that the relaxation prefers.
3. Recompute what a backward node reads, or is kept, and is not live, with all its ancestors.
4. Bring the plan within the budget, then keep what still fits (`local_search.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from treadle.planner.passes.memory.formulation.useful import made_for, unrepeatable
from treadle.planner.passes.memory.lower import RecomputeSchedule, prune
from treadle.planner.passes.memory.methods.lifetimes import Lifetimes
from treadle.planner.passes.memory.methods.local_search import evict, refill
from treadle.planner.passes.memory.methods.restricted import Restricted, formulate, useful
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.program import RunForward
from treadle.planner.solver import Var
from treadle.planner.solver.linear import relax

THRESHOLDS = (0.5, 0.3, 0.7, 0.15, 0.85)
DRAWN = 5
"""Plans with drawn thresholds for one unit of effort."""
SIMPLEX = 5_000
"""Variables up to which the relaxation is solved to its optimum."""


@dataclass(frozen=True)
class Rounded:
    """`schedule` is pruned and within the budget; None proves nothing."""

    schedule: RecomputeSchedule | None
    limit_fired: bool = False


def solve_rounding(
    problem: MemoryProblem,
    effort: int = 1,
    *,
    seed: int = 0,
    time_limit_s: float | None = None,
    on_better: Callable[[RecomputeSchedule], None] = lambda schedule: None,
) -> Rounded:
    """The fastest plan that rounding gives. time_limit_s: wall clock for the linear program, a safety net."""
    program = formulate(problem, useful(problem))
    variables = program.model.size[0]
    relaxed = relax(program.model, solver="highs" if variables <= SIMPLEX else "pdlp", time_limit_s=time_limit_s)
    if not relaxed.values:
        return Rounded(None, relaxed.limit_fired)
    room = problem.budget_bytes - problem.base_bytes
    best: tuple[int, RecomputeSchedule] | None = None
    for thresholds in _thresholds(len(problem.fwd), DRAWN * effort, seed):
        lives = Lifetimes(problem, rounded(program, relaxed.values, thresholds))
        if not evict(lives, room, None if best is None else 2 * best[0]):
            continue
        refill(lives, room)
        if best is None or lives.time_ns < best[0]:
            best = lives.time_ns, lives.schedule()
            on_better(best[1])
    return Rounded(best and best[1], relaxed.limit_fired)


def _thresholds(count: int, drawn: int, seed: int) -> Iterator[list[float]]:
    for threshold in THRESHOLDS:
        yield [threshold] * count
    dice = random.Random(seed)
    for _ in range(drawn):
        yield [dice.uniform(0.02, 0.98) for _ in range(count)]


def rounded(program: Restricted, values: list[float], thresholds: list[float]) -> RecomputeSchedule:
    """The pruned plan that keeps what the relaxation keeps to at least its threshold, whatever its bytes."""
    problem = program.problem
    once = unrepeatable(problem)

    def preferred(choices: dict[int, Var]) -> int:
        return max(choices, key=lambda way: (values[choices[way]], -way))

    backward = tuple(map(preferred, program.backward[1:]))
    wanted = {i for back, way in zip(problem.bwd, backward, strict=True) for i in back.impls[way].needs}
    runs: list[tuple[RunForward, ...]] = []
    kept: list[frozenset[int]] = []
    there: set[int] = set()
    for t, stays in enumerate(program.kept):
        stay = {i for i, var in stays.items() if values[var] >= thresholds[i]} | once
        if t == 0:
            again = {i for i, node in enumerate(problem.fwd) if node.kind == "op" or i in wanted}
        else:
            reads = problem.bwd[t - 1].impls[backward[t - 1]].needs
            again = made_for(problem, [*reads, *sorted(stay - once)], there)
        runs.append(tuple(RunForward(i, _way(program, values, t, i)) for i in sorted(again)))
        there = (there | again) & stay
        kept.append(frozenset(there))
    return prune(problem, RecomputeSchedule(tuple(runs), tuple(kept), backward))


def _way(program: Restricted, values: list[float], t: int, i: int) -> int:
    choices = program.choices[t].get(i, {})
    if sum(values[var] for var in choices.values()) < 0.1:
        return program.problem.fwd[i].fastest(t > 0)
    return max(choices, key=lambda way: (values[choices[way]], -way))
