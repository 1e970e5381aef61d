"""Code generation of sparse plans: a module that attaches the plan to a model of PyTorch."""

from __future__ import annotations

from treadle.codegen.interface import GenerationRequest, Made, Target, Targets, Timeline
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_time
from treadle.planner.passes.sparse.decisions import SparseDecisions

FILE_NAME = "hook.py"


class SparseTargets(Targets[SparseDecisions]):
    targets = (Target("ddp-hook"),)

    def generate(self, plan: Plan[SparseDecisions], request: GenerationRequest) -> Made:
        from treadle.codegen.templates import template
        from treadle.planner.passes.sparse.decided import described

        decisions = plan.decisions
        text = template("torch/sparse_hook.py.j2").render(
            name=f"{decisions.problem.name}: {described(decisions)}",
            time=format_time(decisions.time_ns),
            dense=format_time(decisions.dense_ns),
        )
        facts = {
            "planned_ns": decisions.time_ns,
            "dense_ns": decisions.dense_ns,
            "machines": decisions.problem.machines,
            "devices": decisions.problem.devices,
        }
        return Made({FILE_NAME: text}, facts)

    def timeline(self, plan: Plan[SparseDecisions]) -> Timeline:
        from treadle.planner.passes.sparse.timeline_of import exchange_of
        from treadle.planner.timeline.simulator import simulate

        tasks, resources = exchange_of(plan.decisions)
        return Timeline(tasks, resources, simulate(tasks, resources))


ROOM = SparseTargets()
