"""The sparse pass as a record: its checks, its bound, its figures."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.sparse_costs import SparseCosts
from treadle.planner.documents.sparsity import Sparsity
from treadle.planner.errors import InputError
from treadle.planner.passes.interface import Figures, Inputs, Pass, Rebound, problem_changes
from treadle.planner.passes.sparse.decisions import SparseDecisions
from treadle.planner.passes.sparse.job import SparseJob
from treadle.planner.passes.sparse.problem import SparseProblem


class SparsePass(Pass[SparseDecisions]):
    name = "sparse"
    system = "Zen"
    decisions = SparseDecisions
    job = SparseJob | None
    roles = {"sparsity": Sparsity, "hardware": Hardware, "costs": SparseCosts, "problem": SparseProblem}
    documents = (SparseProblem,)

    def check(self, decisions: SparseDecisions) -> list[str]:
        from treadle.planner.passes.sparse.check import sound

        return sound(decisions)

    def inconsistent(self, decisions: SparseDecisions) -> list[str]:
        """Where another scheme is cheaper: with the links of another day that does not make a plan wrong."""
        from treadle.planner.passes.sparse.check import beaten

        return beaten(decisions)

    def figures(self, decisions: SparseDecisions) -> Figures:
        return Figures(decisions.time_ns)

    def describe(self, decisions: SparseDecisions) -> str:
        from treadle.planner.passes.sparse.decided import described

        return f"sparse plan: {described(decisions)}"

    def check_inputs(self, plan: Plan[SparseDecisions], found: Inputs) -> list[str]:
        """Differences between the plan's problem and what its inputs say now."""
        solved, problem = plan.decisions.problem, _problem(plan, found)
        if problem is None:
            return []
        return problem_changes(solved, problem, problem.__struct_fields__)

    def check_certificate(self, plan: Plan[SparseDecisions]) -> Iterator[str]:
        """Measured schemes are those that the records of the measurements end with."""
        from treadle.planner.passes.sparse.check_tuned import wrong_tuned

        return wrong_tuned(plan.decisions, plan.provenance.tuned)

    def today(self, plan: Plan[SparseDecisions], found: Inputs) -> SparseDecisions | None:
        """The plan's schemes with the counts and links of today; the gradients must be the same."""
        from treadle.planner.passes.sparse.decided import decided
        from treadle.planner.passes.sparse.schemes import BY_NAME

        problem = _problem(plan, found)
        if problem is None:
            return None
        before = [(each.name, each.units, each.width) for each in plan.decisions.problem.gradients]
        if [(each.name, each.units, each.width) for each in problem.gradients] != before:
            raise InputError("the gradients have other names, sizes or another order than in the plan; plan again")
        if missing := [
            each.name
            for each, gradient in zip(plan.decisions.gradients, problem.gradients, strict=True)
            if BY_NAME[each.scheme].push == "blocks" and gradient.blocks is None
        ]:
            raise InputError(f"the inputs have no counts of blocks for {missing[0]}, which the plan sends; plan again")
        now = decided(problem, plan.decisions.sums, [each.scheme for each in plan.decisions.gradients])
        return replace(now, measured=plan.decisions.measured)

    def rebound(self, plan: Plan[SparseDecisions], found: Inputs) -> Rebound:
        from treadle.planner.passes.sparse.decided import decided

        bound = sum(each.least_ns for each in decided(plan.decisions.problem).gradients)
        claimed = plan.certificate.lower_bound
        if claimed > bound:
            return Rebound([f"certificate: lower bound {claimed:g} ns, the problem proves only {bound} ns"], bound)
        return Rebound([], bound)

    def nodes(self, decisions: SparseDecisions, hardware: Hardware) -> int | None:
        return decisions.problem.machines


def _problem(plan: Plan[SparseDecisions], found: Inputs) -> SparseProblem | None:
    """The problem that the inputs describe; None where they do not suffice."""
    from treadle.planner.passes.sparse.extract import problem_of

    given, sparsity, hardware, costs = (found.get(role) for role in ("problem", "sparsity", "hardware", "costs"))
    if isinstance(given, SparseProblem):
        return given
    if not isinstance(sparsity, Sparsity) or not isinstance(hardware, Hardware):
        return None
    if "costs" in plan.inputs and costs is None:
        return None
    return problem_of(sparsity, hardware, costs if isinstance(costs, SparseCosts) else None)


PASS = SparsePass()
