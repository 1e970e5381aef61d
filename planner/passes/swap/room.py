"""The swap pass as a record: its checks, its bound, its figures."""

from __future__ import annotations

from msgspec.structs import replace

from treadle.planner.documents.difference import Change
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, many
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.interface import Figures, Inputs, Pass, Rebound, problem_changes
from treadle.planner.passes.swap.decisions import SwapDecisions
from treadle.planner.passes.swap.problem import SwapProblem


class SwapPass(Pass[SwapDecisions]):
    name = "swap"
    system = "SwapAdvisor"
    decisions = SwapDecisions
    roles = {"trace": Trace, "hardware": Hardware, "problem": SwapProblem}
    needs_costs = True
    documents = (SwapProblem,)

    def check(self, decisions: SwapDecisions) -> list[str]:
        from treadle.planner.passes.swap.check import check

        return check(decisions)

    def figures(self, decisions: SwapDecisions) -> Figures:
        return Figures(decisions.time_ns, decisions.peak_bytes)

    def describe(self, decisions: SwapDecisions) -> str:
        copied = format_bytes(decisions.in_bytes + decisions.out_bytes)
        return f"swap plan of {many(len(decisions.order), 'operator')}, {copied} copied"

    def differences(self, before: SwapDecisions, after: SwapDecisions) -> list[Change]:
        from treadle.planner.passes.swap.differences import swap_differences

        return swap_differences(before, after)

    def check_inputs(self, plan: Plan[SwapDecisions], found: Inputs) -> list[str]:
        """Differences between the plan's problem and that of the problem file, or of trace and hardware with the plan's
        runs; the bytes of device, host and reserve are not compared."""
        solved = plan.decisions.problem
        problem = _problem(plan.decisions, found)
        if problem is None:
            return []
        ours = solved.machine
        machine = replace(problem.machine, memory_bytes=ours.memory_bytes, host_bytes=ours.host_bytes)
        expected = replace(problem, machine=machine, reserve_bytes=solved.reserve_bytes)
        return problem_changes(solved, expected, ("machine", "tensors", "ops"))

    def today(self, plan: Plan[SwapDecisions], found: Inputs) -> SwapDecisions | None:
        """The plan's copies and order, replayed with the times and bandwidths of today; sizes must be the same."""
        from treadle.planner.passes.swap.evaluate import with_figures

        decisions, problem = plan.decisions, _problem(plan.decisions, found)
        if problem is None:
            return None
        old = decisions.problem
        machine = replace(problem.machine, memory_bytes=old.machine.memory_bytes, host_bytes=old.machine.host_bytes)
        if problem.tensors != old.tensors:
            raise InputError("the tensors have other names, sizes or roles than in the plan; plan again")
        if [replace(op, time_ns=0) for op in problem.ops] != [replace(op, time_ns=0) for op in old.ops]:
            raise InputError("the operators read or write other tensors than in the plan; plan again")
        return with_figures(replace(decisions, problem=replace(old, machine=machine, ops=problem.ops)))

    def least_ns(self, decisions: SwapDecisions) -> int:
        """The time of all operators; 0 for a plan with recomputation, which runs more than it must."""
        from treadle.planner.graph.unrolling import copies_alone

        return decisions.problem.ideal_ns if copies_alone(decisions.runs) else 0

    def rebound(self, plan: Plan[SwapDecisions], found: Inputs) -> Rebound:
        """None for a plan with recomputation, which does not record what else could be recomputed. What a search proved
        is not derived again."""
        from treadle.planner.graph.unrolling import copies_alone
        from treadle.planner.passes.swap.bound import SENTENCES, lower_bound

        decisions, proof = plan.decisions, plan.certificate
        if not copies_alone(decisions.runs):
            return Rebound([], None)
        ideal = decisions.problem.ideal_ns
        if proof.lower_bound <= ideal:
            return Rebound([], ideal)
        order = decisions.order if (proof.scope or "").startswith("this order") else None
        bound = lower_bound(decisions.problem, order).time_ns
        if proof.lower_bound > bound and proof.argument != SENTENCES["exact"]:
            finding = f"certificate: lower bound {proof.lower_bound:g} ns, the problem proves only {bound} ns"
            return Rebound([finding], bound)
        return Rebound([], bound)


def _problem(decisions: SwapDecisions, found: Inputs) -> SwapProblem | None:
    from treadle.planner.graph.unrolling import as_run
    from treadle.planner.passes.swap.extract import machine_of, problem_from_trace

    given, trace, hardware = found.get("problem"), found.get("trace"), found.get("hardware")
    if isinstance(given, SwapProblem):
        return given
    if not isinstance(trace, Trace) or trace.costs.model == "absent":
        return None
    machine = decisions.problem.machine
    if isinstance(hardware, Hardware):
        machine = machine_of(hardware, memory_bytes=machine.memory_bytes, host_bytes=machine.host_bytes)
    return problem_from_trace(as_run(trace, decisions.runs), machine)


PASS = SwapPass()
