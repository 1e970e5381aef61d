"""The checkpoint pass as a record: its checks, its bound, its figures."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from treadle.planner.documents.difference import Change, changed, fields_changed
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, many
from treadle.planner.documents.selection import Selection
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
from treadle.planner.passes.checkpoint.job import CheckpointJob
from treadle.planner.passes.checkpoint.problem import CheckpointProblem
from treadle.planner.passes.interface import Figures, Inputs, Pass, Rebound, problem_changes


class CheckpointPass(Pass[CheckpointDecisions]):
    name = "checkpoint"
    system = "Gemini"
    decisions = CheckpointDecisions
    job = CheckpointJob | None
    roles = {"trace": Trace, "hardware": Hardware, "collectives": Selection, "problem": CheckpointProblem}
    documents = (CheckpointProblem,)

    def check(self, decisions: CheckpointDecisions) -> list[str]:
        from treadle.planner.passes.checkpoint.check import check

        return check(decisions)

    def check_certificate(self, plan: Plan[CheckpointDecisions]) -> Iterator[str]:
        """Another interval than the best one, where the plan does not say that it was given."""
        from treadle.planner.passes.checkpoint.check import lines
        from treadle.planner.passes.checkpoint.check_bound import interval_findings

        if "every" not in plan.provenance.options:
            yield from lines(interval_findings(plan.decisions))

    def figures(self, decisions: CheckpointDecisions) -> Figures:
        return Figures(decisions.time_ns)

    def describe(self, decisions: CheckpointDecisions) -> str:
        problem = decisions.problem
        states = format_bytes(problem.devices * problem.state_bytes)
        return f"checkpoint plan of {many(problem.machines, 'machine')} with {states} each, {problem.copies} times"

    def check_inputs(self, plan: Plan[CheckpointDecisions], found: Inputs) -> list[str]:
        """Differences between the plan's problem and what its inputs say now of what they decide alone: a problem of
        everything, hardware of its links."""
        solved, now = plan.decisions.problem, _problem(plan, found)
        return [] if now is None else problem_changes(solved, now, now.__struct_fields__)

    def today(self, plan: Plan[CheckpointDecisions], found: Inputs) -> CheckpointDecisions | None:
        """The plan's holders with the links of today, and the interval that then loses least unless one was given.
        Raises InputError for another number of machines or copies, InfeasibleError where memory is too small now."""
        from treadle.planner.passes.checkpoint.decided import decided

        now, before = _problem(plan, found), plan.decisions
        if now is None:
            return None
        if (now.machines, now.copies) != (before.problem.machines, before.problem.copies):
            raise InputError("another number of machines or copies than in the plan; plan again")
        every = before.every if "every" in plan.provenance.options else None
        return decided(now, before.placement, before.holders, before.variant, every)

    def rebound(self, plan: Plan[CheckpointDecisions], found: Inputs) -> Rebound:
        from treadle.planner.passes.checkpoint.check_bound import least_time_ns

        bound, claimed = least_time_ns(plan.decisions.problem), plan.certificate.lower_bound
        if claimed > bound:
            return Rebound([f"certificate: lower bound {claimed:g} ns, the problem proves only {bound} ns"], bound)
        return Rebound([], bound)

    def differences(self, before: CheckpointDecisions, after: CheckpointDecisions) -> list[Change]:
        """Machines and states, what is decided, how many holders changed, and what survives."""
        found = fields_changed(before.problem, after.problem, ("machines", "copies", "devices", "state_bytes"))
        found += fields_changed(before, after, ("placement", "variant", "every"))
        if len(before.holders) == len(after.holders):
            moved = sum(set(one) != set(two) for one, two in zip(before.holders, after.holders, strict=True))
            text = f"{many(moved, 'state')} of {len(before.holders)} on other machines"
            found += [Change("holders", text, None, moved)] if moved else []
        found += changed("pieces", len(before.pieces), len(after.pieces))
        left, right = ({(each.of, each.lost): each.probability for each in one.survival} for one in (before, after))
        for of, lost in [key for key in left if key in right]:
            found += changed(f"survival of {lost} {of}", left[of, lost], right[of, lost])
        return found + fields_changed(before, after, ("overflow_ns", "checkpoint_ns", "time_ns", "host_bytes"))

    def nodes(self, decisions: CheckpointDecisions, hardware: Hardware) -> int | None:
        return decisions.problem.machines


def _problem(plan: Plan[CheckpointDecisions], found: Inputs) -> CheckpointProblem | None:
    """The plan's problem with what its inputs say now; None where they do not suffice."""
    from treadle.planner.passes.checkpoint.extract import copy_rate_of, link_of

    given, hardware = found.get("problem"), found.get("hardware")
    if isinstance(given, CheckpointProblem):
        return given
    if not isinstance(hardware, Hardware):
        return None
    alpha_ns, link_rate = link_of(hardware)
    return replace(
        plan.decisions.problem,
        devices=hardware.devices_per_node,
        alpha_ns=alpha_ns,
        link_rate=link_rate,
        copy_rate=copy_rate_of(hardware),
    )


PASS = CheckpointPass()
