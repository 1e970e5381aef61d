"""The tiling pass as a record: its checks, its bound, its figures."""

from __future__ import annotations

from treadle.planner.documents.difference import Change, abridged, changed, fields_changed
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import many
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.interface import Figures, Inputs, Pass, Rebound, problem_changes
from treadle.planner.passes.tiling.decisions import TilingDecisions
from treadle.planner.passes.tiling.job import TilingJob
from treadle.planner.passes.tiling.problem import TilingProblem


class TilingPass(Pass[TilingDecisions]):
    name = "tiling"
    system = "Spartan"
    decisions = TilingDecisions
    job = TilingJob | None
    roles = {"trace": Trace, "hardware": Hardware, "problem": TilingProblem}
    documents = (TilingProblem,)

    def check(self, decisions: TilingDecisions) -> list[str]:
        from treadle.planner.passes.tiling.check import check

        return check(decisions)

    def figures(self, decisions: TilingDecisions) -> Figures:
        return Figures(decisions.time_ns, decisions.memory_bytes)

    def describe(self, decisions: TilingDecisions) -> str:
        mesh = "x".join(str(axis.size) for axis in decisions.problem.mesh)
        return f"tiling plan of {many(len(decisions.tilings), 'array')} over a mesh of {mesh}"

    def check_inputs(self, plan: Plan[TilingDecisions], found: Inputs) -> list[str]:
        """Differences between the plan's problem and what it was made from: a problem, a trace, hardware."""
        solved, now = plan.decisions.problem, found.get("problem")
        trace, hardware = found.get("trace"), found.get("hardware")
        changes = problem_changes(solved, now, now.__struct_fields__) if isinstance(now, TilingProblem) else []
        if isinstance(trace, Trace):
            shapes = {tensor.id: tensor.shape for tensor in trace.tensors}
            changes += [
                f"$.decisions.problem.arrays[{place}]: {array.id} has another shape in the trace; plan again"
                for place, array in enumerate(solved.arrays)
                if shapes.get(array.id) != array.shape
            ]
        if isinstance(hardware, Hardware):
            from treadle.planner.passes.tiling.extract import mesh_axes

            if mesh_axes([axis.size for axis in solved.mesh], hardware) != solved.mesh:
                changes.append("$.decisions.problem.mesh: costs that the hardware does not have; plan again")
        return changes

    def today(self, plan: Plan[TilingDecisions], found: Inputs) -> TilingDecisions | None:
        """The plan's tilings with the costs of today. Raises InputError for other arrays or operators."""
        from treadle.planner.passes.tiling.decided import decided

        now, before = found.get("problem"), plan.decisions
        if not isinstance(now, TilingProblem):
            return None
        if _shape_of(now) != _shape_of(before.problem):
            raise InputError("other arrays, operators or workers than in the plan; plan again")
        reads, makes = ([getattr(node, name) for node in before.nodes] for name in ("reads", "makes"))
        return decided(now, before.tilings, reads, makes, method=before.method)

    def differences(self, before: TilingDecisions, after: TilingDecisions) -> list[Change]:
        """The problem, which arrays are cut otherwise, how many moves there are, and the totals."""
        found = fields_changed(before.problem, after.problem, ("name", "model", "memory_bytes"))
        meshes = ("x".join(str(axis.size) for axis in each.problem.mesh) for each in (before, after))
        found += [*changed("mesh", *meshes), *fields_changed(before, after, ("method",))]
        old, new = (
            {array.id: ", ".join(tiling) for array, tiling in zip(each.problem.arrays, each.tilings, strict=True)}
            for each in (before, after)
        )
        other = [f"{name} {old[name]} -> {new[name]}" for name in old if name in new and old[name] != new[name]]
        if other:
            words = f"{many(len(other), 'array')} of {len(old)} cut otherwise: {abridged(other)}"
            found += [Change("tilings", words, None, len(other))]
        found += changed("moves", len(before.edges), len(after.edges))
        return found + fields_changed(before, after, ("cost", "moved_bytes", "memory_bytes", "dup_bytes", "time_ns"))

    def least_ns(self, decisions: TilingDecisions) -> int:
        from treadle.planner.passes.tiling.check_bound import work_ns

        return work_ns(decisions.problem)

    def rebound(self, plan: Plan[TilingDecisions], found: Inputs) -> Rebound:
        """None where the checker's search would be too large. With limits on memory or second copies, what it finds
        without them may be below the bound."""
        from treadle.planner.passes.tiling.check_bound import least_ns

        problem, claimed = plan.decisions.problem, plan.certificate.lower_bound
        bound = least_ns(problem)
        if bound is None:
            return Rebound([], None)
        if claimed > bound and problem.memory_bytes is None and not problem.dup_bytes:
            return Rebound([f"certificate: lower bound {claimed:g} ns, the problem proves only {bound} ns"], bound)
        return Rebound([], bound)


def _shape_of(problem: TilingProblem) -> tuple[object, ...]:
    """What must be the same for tilings to have a meaning."""
    arrays = [(array.id, array.shape, array.item_bytes) for array in problem.arrays]
    nodes = [(node.id, node.operator, node.inputs, node.outputs, node.axes, node.rules) for node in problem.nodes]
    return arrays, nodes, problem.rules, [axis.size for axis in problem.mesh], problem.published


PASS = TilingPass()
