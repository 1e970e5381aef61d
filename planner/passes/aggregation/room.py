"""The pass of aggregation as a record: its checks, its figures, how plans differ."""

from __future__ import annotations

from treadle.planner.documents.cost_matrix import CostMatrix
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import many
from treadle.planner.passes.aggregation.decisions import AggregationDecisions
from treadle.planner.passes.aggregation.job import AggregationJob
from treadle.planner.passes.aggregation.problem import AggregationProblem
from treadle.planner.passes.interface import Figures, Inputs, Pass, problem_changes


class AggregationPass(Pass[AggregationDecisions]):
    name = "aggregation"
    system = "PLink"
    decisions = AggregationDecisions
    job = AggregationJob | None
    roles = {"costs": CostMatrix, "problem": AggregationProblem}
    documents = (AggregationProblem,)

    def check(self, decisions: AggregationDecisions) -> list[str]:
        from treadle.planner.passes.aggregation.check import check

        return check(decisions)

    def figures(self, decisions: AggregationDecisions) -> Figures:
        return Figures(decisions.time_ns)

    def describe(self, decisions: AggregationDecisions) -> str:
        hosts = many(len(decisions.problem.hosts), "host")
        if decisions.levels == 1:
            return f"aggregation plan of {hosts}, flat"
        return f"aggregation plan of {hosts} in {many(len(decisions.groups), 'group')}"

    def check_inputs(self, plan: Plan[AggregationDecisions], found: Inputs) -> list[str]:
        """Differences between the plan's problem and what its inputs say now."""
        given, solved = found.get("problem"), plan.decisions.problem
        if isinstance(given, AggregationProblem):
            return problem_changes(solved, given, given.__struct_fields__)
        return []


PASS = AggregationPass()
