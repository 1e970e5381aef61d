"""The memory pass as a record: its checks, its bound, its figures."""

from __future__ import annotations

from msgspec.structs import replace

from treadle.planner.documents.difference import Change
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.interface import Figures, Inputs, Pass, Rebound
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.job import MemoryJob
from treadle.planner.passes.memory.problem import MemoryProblem

SOLVED_WITHIN = 1e-6
"""Relative difference that the duals of two solver versions may have."""


class MemoryPass(Pass[MemoryDecisions]):
    name = "memory"
    system = "MONeT"
    decisions = MemoryDecisions
    job = MemoryJob
    roles = {"trace": Trace, "hardware": Hardware, "problem": MemoryProblem}
    needs_costs = True
    documents = (MemoryProblem,)

    def check(self, decisions: MemoryDecisions) -> list[str]:
        from treadle.planner.passes.memory.check import check

        return check(decisions)

    def figures(self, decisions: MemoryDecisions) -> Figures:
        return Figures(decisions.objective_ns, decisions.exact_peak_bytes)

    def describe(self, decisions: MemoryDecisions) -> str:
        return "memory plan"

    def differences(self, before: MemoryDecisions, after: MemoryDecisions) -> list[Change]:
        from treadle.planner.passes.memory.differences import memory_differences

        return memory_differences(before, after)

    def check_inputs(self, plan: Plan[MemoryDecisions], found: Inputs) -> list[str]:
        from treadle.planner.passes.memory.check import check_against_trace

        problem, trace = found.get("problem"), found.get("trace")
        if isinstance(problem, MemoryProblem):
            return against_problem(plan, problem)
        if not isinstance(trace, Trace) or trace.costs.model == "absent":
            return []
        return check_against_trace(plan.decisions, trace)

    def today(self, plan: Plan[MemoryDecisions], found: Inputs) -> MemoryDecisions | None:
        from treadle.planner.passes.memory.check import problem_now, with_figures

        decisions, problem, trace = plan.decisions, found.get("problem"), found.get("trace")
        if isinstance(problem, MemoryProblem):
            now = problem_of_plan(plan, problem)
        elif isinstance(trace, Trace) and trace.costs.model != "absent":
            now = problem_now(decisions, trace)
        else:
            return None
        old = decisions.problem
        for part, before, after in (("forward", old.fwd, now.fwd), ("backward", old.bwd, now.bwd)):
            if [node.op for node in before] != [node.op for node in after]:
                raise InputError(f"the {part} pass has other operators than the plan; plan again")
        return with_figures(replace(decisions, problem=now))

    def least_ns(self, decisions: MemoryDecisions) -> int:
        from treadle.planner.passes.memory.bound import least_time

        return least_time(decisions.problem)

    def rebound(self, plan: Plan[MemoryDecisions], found: Inputs) -> Rebound:
        """The bound of the linear program, where it proved that of the plan. What a search proved is not derived
        again."""
        decisions, proof = plan.decisions, plan.certificate
        if not proof.argument.endswith("(weak duality)") or proof.lower_bound <= self.least_ns(decisions):
            return Rebound([], None)
        from treadle.planner.passes.memory.relaxation import priced_bound

        bound = priced_bound(decisions.problem) or 0
        if proof.lower_bound > bound * (1 + SOLVED_WITHIN) + 1:
            finding = f"certificate: lower bound {proof.lower_bound:g} ns, the problem proves only {bound} ns"
            return Rebound([finding], bound)
        return Rebound([], max(bound, int(proof.lower_bound)))


def problem_of_plan(plan: Plan[MemoryDecisions], problem: MemoryProblem) -> MemoryProblem:
    """The problem of a file at the plan's budget, families and reserve."""
    from treadle.planner.passes.memory.planning import MemoryOptions, prepared

    decisions = plan.decisions
    options = MemoryOptions(
        families=decisions.families,
        recompute=decisions.recompute,
        reserve_bytes=plan.provenance.known.reserve_bytes,
    )
    return prepared(replace(problem, budget_bytes=decisions.problem.budget_bytes), options)


def against_problem(plan: Plan[MemoryDecisions], problem: MemoryProblem) -> list[str]:
    """How the plan's problem differs from that of the file at the plan's budget, families and reserve."""
    decisions, expected = plan.decisions, problem_of_plan(plan, problem)
    if expected == decisions.problem:
        return []
    names = [name for name in expected.__struct_fields__ if getattr(expected, name) != getattr(decisions.problem, name)]
    return [f"$.decisions.problem.{name}: not that of the problem file; plan again" for name in names]


PASS = MemoryPass()
