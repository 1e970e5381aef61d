"""The index pass as a record: its checks, its bound, its figures."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.planner.documents.difference import Change, changed, fields_changed
from treadle.planner.documents.index_model import IndexModel
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import many
from treadle.planner.passes.index.configurations import IndexConfiguration, name_of_leaves
from treadle.planner.passes.index.decisions import IndexDecisions
from treadle.planner.passes.index.problem import DrawnWorkload, IndexProblem
from treadle.planner.passes.index.workload import IndexWorkload
from treadle.planner.passes.interface import Figures, Inputs, Pass, Rebound, problem_changes


class IndexPass(Pass[IndexDecisions]):
    name = "index"
    system = "MAPLE"
    decisions = IndexDecisions
    roles = {"workload": IndexWorkload, "model": IndexModel, "problem": IndexProblem}
    documents = (IndexWorkload, IndexProblem)

    def check(self, decisions: IndexDecisions) -> list[str]:
        from treadle.planner.passes.index.check import sound

        return sound(decisions)

    def inconsistent(self, decisions: IndexDecisions) -> list[str]:
        """Where another configuration is faster: by the measurements of another day that does not make a plan wrong."""
        from treadle.planner.passes.index.check import not_fastest

        return not_fastest(decisions)

    def check_certificate(self, plan: Plan[IndexDecisions]) -> Iterator[str]:
        from treadle.planner.passes.index.check_record import record_findings

        return record_findings(plan)

    def figures(self, decisions: IndexDecisions) -> Figures:
        return Figures(decisions.time_ns)

    def describe(self, decisions: IndexDecisions) -> str:
        problem = decisions.problem
        return f"index plan of {many(problem.operations, 'operation')} on {many(problem.bulk, 'loaded key')}"

    def check_inputs(self, plan: Plan[IndexDecisions], found: Inputs) -> list[str]:
        """Differences between the plan's problem and what its inputs say now: a problem, a workload, an evaluator."""
        solved, now = plan.decisions.problem, found.get("problem")
        workload, model = found.get("workload"), found.get("model")
        changes = problem_changes(solved, now, now.__struct_fields__) if isinstance(now, IndexProblem) else []
        if isinstance(workload, IndexWorkload) and workload.draw != solved.workload:
            changes.append("$.decisions.problem.workload: not what the inputs say now; plan again")
        if isinstance(model, IndexModel) and model.name != solved.model:
            changes.append("$.decisions.problem.model: not what the inputs say now; plan again")
        return changes

    def today(self, plan: Plan[IndexDecisions], found: Inputs) -> IndexDecisions | None:
        """The plan's configuration by the measurements of today. Raises InputError where it has none."""
        from treadle.planner.passes.index.decided import with_problem

        now = found.get("problem")
        return with_problem(plan.decisions, now) if isinstance(now, IndexProblem) else None

    def differences(self, before: IndexDecisions, after: IndexDecisions) -> list[Change]:
        """The workload, what was measured, the configuration, its time and memory, and the second best."""
        old, new = before.problem, after.problem
        found = fields_changed(old, new, ("name", "machine", "model", "bulk", *OPERATIONS))
        if isinstance(old.workload, DrawnWorkload) and isinstance(new.workload, DrawnWorkload):
            found += fields_changed(old.workload, new.workload, ("family", "insert_share", "skew", "seed"))
        elif old.workload != new.workload:
            found.append(Change("workload", "other keys or operations"))
        found += changed("candidates", len(old.candidates), len(new.candidates))
        found += fields_changed(old, new, ("top", "cut_short", "max_memory_ratio", "loop_ns"))
        found += changed("configuration", *(name_of_leaves(each.chosen) for each in (before, after)))
        found += changed("time is", *("measured" if each.problem.top else "predicted" for each in (before, after)))
        found += fields_changed(before, after, ("time_ns",)) + changed("memory", before.bytes, after.bytes)
        found += changed("second best", *(_name(each.second) for each in (before, after)))
        found += changed("time of the second best_ns", before.second_ns, after.second_ns)
        return found + changed("over the memory limit", before.over_memory, after.over_memory)

    def least_ns(self, decisions: IndexDecisions) -> int:
        return min(decisions.problem.loop_ns, decisions.time_ns)

    def rebound(self, plan: Plan[IndexDecisions], found: Inputs) -> Rebound:
        bound, claimed = self.least_ns(plan.decisions), plan.certificate.lower_bound
        if claimed > bound:
            return Rebound([f"certificate: lower bound {claimed:g} ns, the problem proves only {bound} ns"], bound)
        return Rebound([], bound)

    def optimal(self, plan: Plan[IndexDecisions]) -> str:
        """Only what was measured is compared, so no plan is the best of all."""
        return "the fastest of those measured" if plan.decisions.problem.top else "the best predicted"


OPERATIONS = ("lookups", "inserts", "deletes", "scans", "whole", "keys_at_end")


def _name(configuration: IndexConfiguration | None) -> str:
    return "none" if configuration is None else name_of_leaves(configuration)


PASS = IndexPass()
