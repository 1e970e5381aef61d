"""The compression pass as a record: its checks, its bound, its figures."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from treadle.planner.documents.compression_costs import CompressionCosts
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.selection import Selection
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.compression.decisions import CompressionDecisions
from treadle.planner.passes.compression.job import CompressionJob
from treadle.planner.passes.compression.problem import CompressionProblem
from treadle.planner.passes.interface import Figures, Inputs, Pass, Rebound, problem_changes


class CompressionPass(Pass[CompressionDecisions]):
    name = "compression"
    system = "Espresso, Cupcake"
    decisions = CompressionDecisions
    job = CompressionJob | None
    roles = {
        "trace": Trace,
        "hardware": Hardware,
        "costs": CompressionCosts,
        "collectives": Selection,
        "problem": CompressionProblem,
    }
    needs_costs = True
    documents = (CompressionProblem,)

    def check(self, decisions: CompressionDecisions) -> list[str]:
        from treadle.planner.passes.compression.check import check

        return check(decisions)

    def figures(self, decisions: CompressionDecisions) -> Figures:
        return Figures(decisions.time_ns)

    def describe(self, decisions: CompressionDecisions) -> str:
        from treadle.planner.passes.compression.decided import described

        return f"compression plan: {described(decisions)}"

    def check_certificate(self, plan: Plan[CompressionDecisions]) -> Iterator[str]:
        """Where a record of measurements ends with another exchange than the plan's."""
        method, time_ns = plan.provenance.method, plan.decisions.time_ns
        for record in plan.provenance.tuned:
            times = [each.predicted_ns for each in record.ranked if each.name == record.chosen]
            if record.chosen != method or times != [time_ns]:
                yield f"provenance.tuned: took {record.chosen}, expected {method}, predicted to take {time_ns} ns"

    def check_inputs(self, plan: Plan[CompressionDecisions], found: Inputs) -> list[str]:
        """Differences between the plan's problem and what its inputs say now."""
        solved, problem = plan.decisions.problem, _problem(plan, found)
        if problem is None:
            return []
        return problem_changes(solved, problem, problem.__struct_fields__)

    def today(self, plan: Plan[CompressionDecisions], found: Inputs) -> CompressionDecisions | None:
        """The plan's groups with the times and links of today; the gradients must be the same."""
        from treadle.planner.passes.compression.decided import decided

        solved, problem = plan.decisions.problem, _problem(plan, found)
        if problem is None:
            return None
        if [replace(each, backward_ns=0) for each in problem.gradients] != [
            replace(each, backward_ns=0) for each in solved.gradients
        ]:
            raise InputError("the gradients have other names, sizes or another order than in the plan; plan again")
        rivals = plan.decisions.rivals
        others, cut = {each.name: each.groups for each in rivals}, [each.name for each in rivals if each.cut]
        return decided(problem, plan.decisions.groups, others, cut)

    def least_ns(self, decisions: CompressionDecisions) -> int:
        """All operators without any exchange."""
        return decisions.problem.forward_ns + decisions.problem.backward_ns

    def rebound(self, plan: Plan[CompressionDecisions], found: Inputs) -> Rebound:
        """What a search of all groups and options proved is not derived again."""
        from treadle.planner.passes.compression.bound import SEARCHED, lower_bound

        proof = plan.certificate
        if proof.lower_bound <= self.least_ns(plan.decisions):
            return Rebound([], self.least_ns(plan.decisions))
        bound = lower_bound(plan.decisions.problem).time_ns
        if proof.lower_bound > bound and not proof.argument.startswith(SEARCHED):
            finding = f"certificate: lower bound {proof.lower_bound:g} ns, the problem proves only {bound} ns"
            return Rebound([finding], bound)
        return Rebound([], bound)

    def nodes(self, decisions: CompressionDecisions, hardware: Hardware) -> int | None:
        return decisions.problem.machines


def _problem(plan: Plan[CompressionDecisions], found: Inputs) -> CompressionProblem | None:
    """The problem that the inputs describe, all ready at once where it is so in the plan; None where they do not
    suffice."""
    from treadle.planner.passes.compression.extract import at_once, problem_of

    solved, given = plan.decisions.problem, found.get("problem")
    trace, hardware, costs = found.get("trace"), found.get("hardware"), found.get("costs")
    collectives = found.get("collectives")
    if isinstance(given, CompressionProblem):
        return given
    if not isinstance(trace, Trace) or not isinstance(hardware, Hardware) or not isinstance(costs, CompressionCosts):
        return None
    if trace.costs.model == "absent" or ("collectives" in plan.inputs and collectives is None):
        return None
    planned = collectives if isinstance(collectives, Selection) else None
    problem = problem_of(trace, hardware, costs, solved.names, planned=planned)
    return problem if solved.backward_ns else at_once(problem)


PASS = CompressionPass()
