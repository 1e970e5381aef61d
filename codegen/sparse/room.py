"""Code generation of sparse plans: a module that attaches the plan to a model of PyTorch."""

from __future__ import annotations

from treadle.codegen.interface import GenerationRequest, Made, Target, Targets, Timeline
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InputError
from treadle.planner.passes.sparse.decisions import SparseDecisions

FILE_NAME = "hook.py"


class SparseTargets(Targets[SparseDecisions]):
    targets = (Target("ddp-hook"),)

    def generate(self, plan: Plan[SparseDecisions], request: GenerationRequest) -> Made:
        raise InputError("sparse plans cannot become code yet", where=request.plan_file)

    def timeline(self, plan: Plan[SparseDecisions]) -> Timeline:
        from treadle.planner.passes.sparse.timeline_of import exchange_of
        from treadle.planner.timeline.simulator import simulate

        tasks, resources = exchange_of(plan.decisions)
        return Timeline(tasks, resources, simulate(tasks, resources))


ROOM = SparseTargets()
