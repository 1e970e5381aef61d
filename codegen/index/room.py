"""Code generation of index plans: each target has its own module, which returns what is made of a plan."""

from __future__ import annotations

from treadle.codegen.interface import GenerationRequest, Made, Target, Targets, Timeline
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.index.decisions import IndexDecisions


class IndexTargets(Targets[IndexDecisions]):
    targets = (Target("index"),)

    def generate(self, plan: Plan[IndexDecisions], request: GenerationRequest) -> Made:
        from treadle.codegen.index.program import index_program

        return index_program(plan)

    def timeline(self, plan: Plan[IndexDecisions]) -> Timeline:
        from treadle.planner.passes.index.timeline_of import trace_of
        from treadle.planner.timeline.simulator import simulate

        tasks, resources = trace_of(plan.decisions)
        return Timeline(tasks, resources, simulate(tasks, resources))


ROOM = IndexTargets()
