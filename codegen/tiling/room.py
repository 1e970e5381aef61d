"""Code generation of tiling plans: each target has its own module, which returns what is made of a plan."""

from __future__ import annotations

from treadle.codegen.interface import GenerationRequest, Made, Target, Targets, Timeline
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.tiling.decisions import TilingDecisions


class TilingTargets(Targets[TilingDecisions]):
    targets = (
        Target("dtensor"),
        Target("dask"),
        Target("tiling-config"),
        Target("jax", not_run="found shardings for JAX; import them in the program that has the arrays"),
    )

    def generate(self, plan: Plan[TilingDecisions], request: GenerationRequest) -> Made:
        if request.target.name == "dtensor":
            from treadle.codegen.tiling.dtensor import module

            return module(plan, request)
        if request.target.name == "dask":
            from treadle.codegen.tiling.dask_program import dask_program

            return dask_program(plan, request.plan_file)
        if request.target.name == "jax":
            from treadle.codegen.tiling.jax import shardings

            return shardings(plan)
        from treadle.codegen.tiling.config import configuration

        return configuration(plan)

    def timeline(self, plan: Plan[TilingDecisions]) -> Timeline:
        """One operator after the other, each with what it moves before and after."""
        from treadle.planner.passes.tiling.timeline_of import tasks_of
        from treadle.planner.timeline.simulator import simulate

        tasks, resources = tasks_of(plan.decisions)
        return Timeline(tasks, resources, simulate(tasks, resources))


ROOM = TilingTargets()
