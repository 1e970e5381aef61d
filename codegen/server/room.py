"""Code generation of server plans: each target has its own module, which returns what is made of a plan."""

from __future__ import annotations

from treadle.codegen.interface import GenerationRequest, Made, Target, Targets, Timeline
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.server.decisions import ServerDecisions


class ServerTargets(Targets[ServerDecisions]):
    targets = (
        Target("ddp-hook"),
        Target("server-config", not_run="found texts of configuration; `treadle serve` runs the plan itself"),
        Target("verbs", not_run="found programs for RDMA; compile them with `make` and start them on each machine"),
    )

    def generate(self, plan: Plan[ServerDecisions], request: GenerationRequest) -> Made:
        if request.target.name == "ddp-hook":
            from treadle.codegen.server.hook import hook

            return hook(plan)
        if request.target.name == "verbs":
            from treadle.codegen.server.verbs import verbs

            return verbs(plan)
        from treadle.codegen.server.config import configuration

        return configuration(plan)

    def timeline(self, plan: Plan[ServerDecisions]) -> Timeline:
        from treadle.planner.passes.server.timeline_of import exchange_of
        from treadle.planner.timeline.simulator import simulate

        tasks, resources = exchange_of(plan.decisions)
        return Timeline(tasks, resources, simulate(tasks, resources))


ROOM = ServerTargets()
