"""The index pass as a record: its checks, its bound, its figures."""

from __future__ import annotations

from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import many
from treadle.planner.passes.index.decisions import IndexDecisions
from treadle.planner.passes.index.problem import IndexProblem
from treadle.planner.passes.interface import Figures, Inputs, Pass


class IndexPass(Pass[IndexDecisions]):
    name = "index"
    system = "MAPLE"
    decisions = IndexDecisions
    roles = {"problem": IndexProblem}
    documents = (IndexProblem,)

    def check(self, decisions: IndexDecisions) -> list[str]:
        from treadle.planner.passes.index.check import check

        return check(decisions)

    def figures(self, decisions: IndexDecisions) -> Figures:
        return Figures(decisions.time_ns)

    def describe(self, decisions: IndexDecisions) -> str:
        return f"index plan of {many(decisions.problem.operations, 'operation')}"

    def check_inputs(self, plan: Plan[IndexDecisions], found: Inputs) -> list[str]:
        same = found.get("problem", plan.decisions.problem) == plan.decisions.problem
        return [] if same else ["$.decisions.problem: differs from the file; plan again"]


PASS = IndexPass()
