"""Code generation of orders of hosts: lists of hosts that launchers read."""

from __future__ import annotations

from treadle.codegen.interface import GenerationRequest, Made, Target, Targets, Timeline
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.ranks.decisions import RanksDecisions


class RanksTargets(Targets[RanksDecisions]):
    targets = (Target("hostfile"),)

    def generate(self, plan: Plan[RanksDecisions], request: GenerationRequest) -> Made:
        decisions = plan.decisions
        hosts = [decisions.problem.hosts[host] for host in decisions.order]
        text = "".join(f"{host.name} slots={host.slots}\n" for host in hosts)
        return Made({"hostfile": text}, {"planned_ns": decisions.time_ns, "hosts": len(hosts)})

    def timeline(self, plan: Plan[RanksDecisions]) -> Timeline:
        from treadle.planner.passes.ranks.timeline_of import allreduce_of
        from treadle.planner.timeline.simulator import simulate

        tasks = allreduce_of(plan.decisions)
        return Timeline(tasks, (), simulate(tasks))


ROOM = RanksTargets()
