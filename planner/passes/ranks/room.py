"""The pass of ranks as a record: its checks, its bound, its figures."""

from __future__ import annotations

from treadle.planner.documents.cost_matrix import CostMatrix
from treadle.planner.documents.difference import Change, changed, fields_changed
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import many
from treadle.planner.errors import InputError
from treadle.planner.machine.host_costs import Repair, as_mended
from treadle.planner.passes.interface import Figures, Inputs, Pass, Rebound, problem_changes
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
        """Differences between the plan's problem and what its inputs say now; its hops are compared elsewhere."""
        solved, problem = plan.decisions.problem, _problem(plan, found)
        return [] if problem is None else problem_changes(solved, problem, problem.__struct_fields__)

    def today(self, plan: Plan[RanksDecisions], found: Inputs) -> RanksDecisions | None:
        """The plan's order by the costs of today, if the hosts are the same. The worst order may be that no more."""
        from treadle.planner.passes.ranks.decided import decided

        problem, decisions = _problem(plan, found), plan.decisions
        if problem is None:
            return None
        if problem.hosts != decisions.problem.hosts:
            raise InputError("the hosts have other names or slots, or another order, than in the plan; plan again")
        return decided(problem, decisions.order, decisions.worst)

    def rebound(self, plan: Plan[RanksDecisions], found: Inputs) -> Rebound:
        """What a search proved is not derived again."""
        from treadle.planner.passes.ranks.bound import SENTENCES, lower_bound
        from treadle.planner.passes.ranks.cost import OrderCosts

        decisions, proof = plan.decisions, plan.certificate
        bound = lower_bound(OrderCosts(decisions.problem), decisions.cost_ns).time_ns
        if proof.lower_bound > bound and proof.argument != SENTENCES["exact"]:
            finding = f"certificate: lower bound {proof.lower_bound:g} ns, the problem proves only {bound} ns"
            return Rebound([finding], bound)
        return Rebound([], bound)

    def differences(self, before: RanksDecisions, after: RanksDecisions) -> list[Change]:
        names = [[each.problem.hosts[host].name for host in each.order] for each in (before, after)]
        moved = [place for place, pair in enumerate(zip(*names, strict=False)) if pair[0] != pair[1]]
        found = fields_changed(before, after, ("cost_ns", "time_ns", "original_ns", "median_ns", "worst_ns"))
        if moved and {*names[0]} == {*names[1]}:
            first = moved[0]
            how = f"{many(len(moved), 'place')} with another host, first place {first}: "
            found.insert(0, Change("order", f"{how}{names[0][first]} -> {names[1][first]}"))
        return found + changed("algorithm", before.problem.algorithm, after.problem.algorithm)


def _problem(plan: Plan[RanksDecisions], found: Inputs) -> RanksProblem | None:
    """The problem that the inputs describe, with the hops of the plan; None where they do not suffice. A matrix that
    needs it is mended as it was for the plan, or else as publications do, by the larger of two directions."""
    from treadle.planner.passes.ranks.extract import problem_of

    given, solved = found.get("problem"), plan.decisions.problem
    if isinstance(given, RanksProblem):
        return given
    costs = next((each for each in found.values() if isinstance(each, CostMatrix)), None)
    if costs is None:
        return None

    def made(repair: Repair | None) -> RanksProblem:
        return problem_of(
            costs,
            solved.algorithm,
            objective=solved.objective,
            size_bytes=solved.size_bytes,
            factors=solved.factors,
            hops=solved.hops,
            repair=repair,
        )

    return as_mended(made, solved)


PASS = RanksPass()
