"""Code generation of compression plans: a module that attaches the plan to a model of PyTorch."""

from __future__ import annotations

from treadle.codegen.interface import GenerationRequest, Made, Target, Targets, Timeline
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_time
from treadle.planner.passes.compression.decisions import CompressionDecisions

FILE_NAME = "hook.py"


class CompressionTargets(Targets[CompressionDecisions]):
    targets = (Target("ddp-hook"),)

    def generate(self, plan: Plan[CompressionDecisions], request: GenerationRequest) -> Made:
        from treadle.codegen.templates import template
        from treadle.planner.passes.compression.decided import described

        decisions = plan.decisions
        text = template("torch/hook.py.j2").render(
            name=f"{decisions.problem.name}: {described(decisions)}",
            time=format_time(decisions.time_ns),
            plain=format_time(decisions.uncompressed_ns),
        )
        facts = {
            "planned_ns": decisions.time_ns,
            "uncompressed_ns": decisions.uncompressed_ns,
            "sent_bytes": decisions.sent_bytes,
            "machines": decisions.problem.machines,
            "devices": decisions.problem.devices,
        }
        return Made({FILE_NAME: text}, facts)

    def timeline(self, plan: Plan[CompressionDecisions]) -> Timeline:
        from treadle.planner.passes.compression.timeline_of import iteration_of
        from treadle.planner.timeline.simulator import simulate

        tasks, resources = iteration_of(plan.decisions.problem, plan.decisions.groups)
        return Timeline(tasks, resources, simulate(tasks, resources))


ROOM = CompressionTargets()
