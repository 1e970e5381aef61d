"""Code generation of orders of hosts: files that launchers read."""

from __future__ import annotations

from treadle.codegen.interface import GenerationRequest, Made, Target, Targets, Timeline
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.ranks.decisions import RanksDecisions


class RanksTargets(Targets[RanksDecisions]):
    targets = tuple(map(Target, ("hostfile", "openmpi-rankfile", "torchrun", "slurm", "kubernetes")))
    carries_inputs = True

    def generate(self, plan: Plan[RanksDecisions], request: GenerationRequest) -> Made:
        from treadle.codegen.ranks.launchers import files_of

        decisions = plan.decisions
        files = files_of(decisions, request.target.name, request.plan_file)
        return Made(files, {"planned_ns": decisions.time_ns, "hosts": len(decisions.order)})

    def timeline(self, plan: Plan[RanksDecisions]) -> Timeline:
        from treadle.planner.passes.ranks.timeline_of import allreduce_of
        from treadle.planner.timeline.simulator import simulate

        tasks = allreduce_of(plan.decisions)
        return Timeline(tasks, (), simulate(tasks))


ROOM = RanksTargets()
