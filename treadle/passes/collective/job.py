"""The collective pass in a job: an allreduce for each message of gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.job.part import (
    JobInputs,
    JobPart,
    JobPlan,
    PartPrediction,
    RankStep,
    Unplanned,
    WantedDocument,
)
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.documents.sketch import Sketch
from treadle.planner.documents.trace import Trace
from treadle.planner.graph.gradients import Bucket, buckets_of
from treadle.planner.passes import require_pass
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.collective.job import CollectiveJob
from treadle.planner.passes.interface import Inputs
from treadle.planner.search.clock import Clock
from treadle.runtime.collective.average import average

if TYPE_CHECKING:
    from treadle.job.kept import CostCache
    from treadle.planner.solver import Progress


@dataclass(frozen=True)
class CollectivePart(JobPart):
    job: CollectiveJob

    def wants(self, hardware: Hardware) -> Mapping[str, WantedDocument]:
        return {"sketch": WantedDocument(self.job.sketch, Sketch)}

    def with_measured(
        self, trace: Trace, hardware: Hardware, others: Inputs, say: Callable[[str], None], cache: CostCache
    ) -> tuple[Hardware, Inputs]:
        from treadle.job.runtime_costs import with_runtime_costs

        return with_runtime_costs(hardware, say, cache), others

    def plans(self, given: JobInputs) -> Sequence[JobPlan]:
        return [
            JobPlan(name, f"{name} of {format_bytes(bucket.bytes)}", partial(_plan, bucket, given))
            for name, bucket in self._messages(given).items()
        ]

    def unplanned(self, trace: Trace) -> Unplanned:
        (everything,) = buckets_of(trace, 1)  # any number of messages packs the same bytes
        return Unplanned(partial(average, [everything.parameters], None))

    def training(self, given: JobInputs, out: Path) -> Callable[[RankStep], None]:
        messages = self._messages(given)
        folders = [str(out / name) for name in messages]
        return partial(average, [bucket.parameters for bucket in messages.values()], folders)

    def prediction(self, plans: Mapping[str, Plan]) -> PartPrediction:
        messages = (require_pass(plan, CollectiveDecisions, name) for name, plan in plans.items())
        time_us = sum(plan.prediction.time_us for plan in plans.values())
        largest = max(plan.decisions.input_bytes for plan in messages)
        return PartPrediction(exchange_ms=time_us / 1e3, exchange_bytes=largest)

    def _messages(self, given: JobInputs) -> dict[str, Bucket]:
        """The gradients that each plan exchanges, by its name."""
        return {f"allreduce-{place}": bucket for place, bucket in enumerate(buckets_of(given.trace, self.job.buckets))}


def _plan(bucket: Bucket, given: JobInputs, clock: Clock | None, on_progress: Callable[[Progress], None]) -> Plan:
    from treadle.passes.collective.tuning import on_cpu, pricing
    from treadle.planner.passes.collective.limits import Limits
    from treadle.planner.passes.collective.planning import CollectiveOptions, make_request, plan_collective, references
    from treadle.runtime.collective.turns import collective_measuring

    sketch = given.others["sketch"]
    assert isinstance(sketch, Sketch)
    # Without costs of the CPU runtime: its processes have one thread, so that more instances only cut messages.
    cpu, priced = all(device.kind == "cpu" for device in given.hardware.devices), on_cpu(given.hardware)
    instances = 1 if cpu and not priced else None
    price = pricing(given.hardware, None, instances) if priced else None
    clock, top = clock or Clock(), given.measure_top if priced else 0
    measuring = collective_measuring(top, given.hardware, clock) if top else None
    return plan_collective(
        make_request("allreduce", given.hardware, sketch, bucket.bytes),
        options=CollectiveOptions(
            "auto",
            instances,
            limits=Limits(time_s=given.limit_s),
            pricing=price,
            in_switch=False,
            measuring=measuring,
        ),
        clock=clock,
        inputs=references(given.hardware, sketch, None, {"hardware": "hardware.json", "sketch": "sketch.json"}),
        on_progress=on_progress,
    )
