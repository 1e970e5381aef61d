"""The pass of ranks as a record: its checks, its bound, its figures."""

from __future__ import annotations

from treadle.planner.documents.cost_matrix import CostMatrix
from treadle.planner.documents.difference import Change, changed, fields_changed
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import many
from treadle.planner.passes.interface import Figures, Inputs, Pass, problem_changes
from treadle.planner.passes.ranks.decisions import RanksDecisions
from treadle.planner.passes.ranks.job import RanksJob
from treadle.planner.passes.ranks.problem import RanksProblem


class RanksPass(Pass[RanksDecisions]):
    """The objective of a certificate is the cost under the objective of the problem; the prediction is what an
    allreduce takes."""

    name = "ranks"
    system = "PLink Collectives"
    decisions = RanksDecisions
    job = RanksJob | None
    roles = {"costs": CostMatrix, "problem": RanksProblem, "plan": Plan}
    documents = (RanksProblem,)

    def check(self, decisions: RanksDecisions) -> list[str]:
        from treadle.planner.passes.ranks.check import check

        return check(decisions)

    def figures(self, decisions: RanksDecisions) -> Figures:
        return Figures(decisions.cost_ns)

    def times_us(self, plan: Plan[RanksDecisions]) -> tuple[float, ...]:
        return (plan.decisions.time_ns / 1000,)

    def describe(self, decisions: RanksDecisions) -> str:
        problem = decisions.problem
        return f"order of {many(len(problem.hosts), 'host')} for {problem.algorithm}"

    def check_inputs(self, plan: Plan[RanksDecisions], found: Inputs) -> list[str]:
        """Differences between the plan's problem and what its inputs say now."""
        given, solved = found.get("problem"), plan.decisions.problem
        if isinstance(given, RanksProblem):
            return problem_changes(solved, given, given.__struct_fields__)
        return []

    def differences(self, before: RanksDecisions, after: RanksDecisions) -> list[Change]:
        names = [[each.problem.hosts[host].name for host in each.order] for each in (before, after)]
        moved = [place for place, pair in enumerate(zip(*names, strict=False)) if pair[0] != pair[1]]
        found = fields_changed(before, after, ("cost_ns", "time_ns", "original_ns", "median_ns", "worst_ns"))
        if moved and {*names[0]} == {*names[1]}:
            first = moved[0]
            how = f"{many(len(moved), 'place')} with another host, first place {first}: "
            found.insert(0, Change("order", f"{how}{names[0][first]} -> {names[1][first]}"))
        return found + changed("algorithm", before.problem.algorithm, after.problem.algorithm)


PASS = RanksPass()
