"""Code generation of aggregation plans, which are collectives: all targets of those but the selections."""

from __future__ import annotations

from typing import Any, cast

from msgspec.structs import replace

from treadle.codegen.collective.room import ROOM as COLLECTIVE
from treadle.codegen.interface import GenerationRequest, Made, Targets, Timeline
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.aggregation.decisions import AggregationDecisions
from treadle.planner.passes.collective.algorithm import CollectiveDecisions


class AggregationTargets(Targets[AggregationDecisions]):
    targets = COLLECTIVE.targets
    carries_inputs = True

    def generate(self, plan: Plan[AggregationDecisions], request: GenerationRequest) -> Made:
        from treadle.codegen.aggregation.lower import require_right

        collective = self.collective(plan)
        require_right(collective.decisions, request.plan_file)
        return COLLECTIVE.generate(collective, request)

    def collective(self, plan: Plan[AggregationDecisions]) -> Plan[CollectiveDecisions]:
        from treadle.codegen.aggregation.lower import collective_of

        return replace(cast(Any, plan), decisions=collective_of(plan.decisions))

    def timeline(self, plan: Plan[AggregationDecisions]) -> Timeline:
        return COLLECTIVE.timeline(self.collective(plan))


ROOM = AggregationTargets()
