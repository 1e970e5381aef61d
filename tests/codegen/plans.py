"""Memory plans by what the forward pass keeps, without a search."""

from __future__ import annotations

from collections.abc import Collection

from treadle.planner.documents.plan import VERSION, Certificate, Plan, Prediction, Provenance
from treadle.planner.documents.trace import Trace
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.extract.problem import problem_from_trace
from treadle.planner.passes.memory.lower import RecomputeSchedule, prune, store_all
from treadle.planner.passes.memory.planning import decide
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.program import RunForward


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
    return decide(problem, schedule_keeping(problem, kept, store_all(problem).backward))


def schedule_keeping(problem: MemoryProblem, kept: Collection[int], backward: tuple[int, ...]) -> RecomputeSchedule:
    """The same with these implementations of the backward nodes."""
    wanted = {i for node, way in zip(problem.bwd, backward, strict=True) for i in node.impls[way].needs}
    first = tuple(RunForward(i) for i, node in enumerate(problem.fwd) if node.kind == "op" or i in wanted)
    held = frozenset(run.node for run in first if run.node in kept or not problem.fwd[run.node].recomputable)
    runs = [first]
    for node, way in zip(problem.bwd, backward, strict=True):
        todo, again = list(node.impls[way].needs), set()
        while todo:
            i = todo.pop()
            if i not in held and i not in again:
                again.add(i)
                todo.extend(problem.fwd[i].inputs)
                if (creator := problem.fwd[i].creator) is not None:
                    again.add(creator)
                    todo.extend(problem.fwd[creator].inputs)
        runs.append(tuple(RunForward(i) for i in sorted(again)))
    return prune(problem, RecomputeSchedule(tuple(runs), (held,) * len(runs), backward))
