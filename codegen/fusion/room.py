"""Code generation of fusion plans: kernels of ours, and what NCCL, PyTorch and TransformerEngine can carry of them."""

from __future__ import annotations

from treadle.codegen.interface import GenerationRequest, Made, Target, Targets, Timeline
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.fusion.decisions import FusionDecisions


def _wrapped(name: str) -> Target:
    return Target(name, not_run=f"found target {name} of a fusion plan, expected cuda, whose kernels run here")


class FusionTargets(Targets[FusionDecisions]):
    targets = (
        Target("cuda", carries=True),
        _wrapped("torch"),
        _wrapped("nccl"),
        _wrapped("nccl-device"),
        Target("tp-overlap", not_run="found settings of TransformerEngine, which runs them"),
    )

    def generate(self, plan: Plan[FusionDecisions], request: GenerationRequest) -> Made:
        from treadle.codegen.fusion.generate import generate

        return Made(*generate(plan.decisions, request.plan_file, request.target.name, request.collectives))

    def timeline(self, plan: Plan[FusionDecisions]) -> Timeline:
        """Launches, those that overlap on a stream of their own."""
        from treadle.planner.timeline.simulator import Resource, Task, simulate

        tasks, stream = [], 0
        for stage in plan.decisions.stages:
            stream = stream + 1 if stage.overlaps else 0
            took = stage.end_ns - stage.start_ns
            tasks.append(Task(stage.name, took, (f"stream {stream}",), release=stage.start_ns))
        resources = tuple(Resource(name) for name in sorted({name for task in tasks for name in task.resources}))
        return Timeline(tuple(tasks), resources, simulate(tasks, resources))


ROOM = FusionTargets()
