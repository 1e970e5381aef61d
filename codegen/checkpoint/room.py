"""Code generation of checkpoint plans: each target has its own module, which returns what is made of a plan."""

from __future__ import annotations

from treadle.codegen.interface import GenerationRequest, Made, Target, Targets, Timeline
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions


class CheckpointTargets(Targets[CheckpointDecisions]):
    targets = (
        Target("checkpoint-config"),
        Target("nvrx", not_run="found a module for NVRx; import it in the training script"),
        Target("lm-resiliency", not_run="found a module for LM-Resiliency; import it in the training script"),
        Target("torchft", not_run="found a module for torchft; import it in the training script"),
        Target("cuda-checkpoint", not_run="found a library for ranks with GPUs; compile it with nvcc"),
    )

    def generate(self, plan: Plan[CheckpointDecisions], request: GenerationRequest) -> Made:
        if request.target.name == "nvrx":
            from treadle.codegen.checkpoint.nvrx import nvrx

            return nvrx(plan, request.plan_file)
        if request.target.name == "lm-resiliency":
            from treadle.codegen.checkpoint.lm_resiliency import lm_resiliency

            return lm_resiliency(plan, request.plan_file)
        if request.target.name == "torchft":
            from treadle.codegen.checkpoint.torchft import torchft

            return torchft(plan)
        if request.target.name == "cuda-checkpoint":
            from treadle.codegen.checkpoint.cuda import cuda_checkpoint

            return cuda_checkpoint(plan, request.plan_file)
        from treadle.codegen.checkpoint.config import configuration

        return configuration(plan)

    def timeline(self, plan: Plan[CheckpointDecisions]) -> Timeline:
        """An iteration with a checkpoint."""
        from treadle.planner.passes.checkpoint.events import RESOURCES, tasks_of
        from treadle.planner.timeline.simulator import simulate

        tasks = tasks_of(plan.decisions)
        return Timeline(tasks, RESOURCES, simulate(tasks, RESOURCES))


ROOM = CheckpointTargets()
