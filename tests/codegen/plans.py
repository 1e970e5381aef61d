"""Memory plans by what the forward pass keeps, without a search."""

from __future__ import annotations

from collections.abc import Collection

from planner.memory.decisions import MemoryDecisions
from planner.memory.extract import problem_from_trace
from planner.memory.lower import Schedule, prune, store_all
from planner.memory.planning import decide
from planner.plan import VERSION, Certificate, Plan, Prediction, Provenance
from planner.trace import Trace


def plan_with(decisions: MemoryDecisions) -> Plan:
    """A plan of these decisions that no search made."""
    return Plan(
        version=VERSION,
        inputs={},
        decisions=decisions,
        prediction=Prediction(time_us=decisions.objective_ns / 1000, peak_bytes=decisions.exact_peak_bytes),
        certificate=Certificate(
            verdict="accepted", checker="hand", objective=0, lower_bound=0, unit="ns", argument="-", gap=0, optimal=True
        ),
        provenance=Provenance(tool="treadle", method="hand"),
    )


def decisions_keeping(trace: Trace, kept: Collection[int]) -> MemoryDecisions:
    """Every stage recomputes what its backward node reads from `kept` and from what must not run again."""
    problem = problem_from_trace(trace, 2**40)
    base = store_all(problem)
    first = {run.node: run for run in base.runs[0]}
    held = frozenset(i for i in base.kept[0] if i in kept or not problem.fwd[i].recomputable)
    runs = [base.runs[0]]
    for stage in range(1, len(problem.bwd) + 1):
        todo, again = list(base.needs(problem, stage)), set()
        while todo:
            i = todo.pop()
            if i not in held and i not in again:
                again.add(i)
                todo.extend(problem.fwd[i].inputs)
                if (creator := problem.fwd[i].creator) is not None:
                    again.add(creator)
                    todo.extend(problem.fwd[creator].inputs)
        runs.append(tuple(first[i] for i in sorted(again)))
    return decide(problem, prune(problem, Schedule(tuple(runs), (held,) * len(runs), base.backward)))
