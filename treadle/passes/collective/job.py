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
    PartReport,
    PredictedRow,
    RankStep,
    TrainingComparison,
    WantedDocument,
)
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.documents.sketch import Sketch
from treadle.planner.graph.gradients import Bucket, buckets_of
from treadle.planner.passes.collective.job import CollectiveJob
from treadle.planner.search.clock import Clock

if TYPE_CHECKING:
    from treadle.planner.solver import Progress


@dataclass(frozen=True)
class CollectivePart(JobPart):
    job: CollectiveJob

    def wants(self) -> Mapping[str, WantedDocument]:
        return {"sketch": WantedDocument(self.job.sketch, Sketch)}

    def plans(self, given: JobInputs) -> Sequence[JobPlan]:
        return [
            JobPlan(name, f"{name} of {format_bytes(bucket.bytes)}", partial(_plan, bucket, given))
            for name, bucket in self._messages(given).items()
        ]

    def training(self, given: JobInputs, out: Path) -> Callable[[RankStep], None]:
        return partial(
            _exchange,
            [(bucket.parameters, str(out / name)) for name, bucket in self._messages(given).items()],
        )

    def report(self, plans: Mapping[str, Plan], measured: TrainingComparison | None) -> PartReport:
        if measured is None:
            return PartReport()
        step_ms = sum(plan.prediction.time_us for plan in plans.values()) / 1e3
        note = (
            "The exchange is followed message by message in Python, which takes longer than the links of the profile."
        )
        exchange = PredictedRow("exchange of gradients, ms", step_ms, measured.planned.exchange_s * 1e3)
        return PartReport(rows=(exchange,), step_ms=step_ms, note=note)

    def _messages(self, given: JobInputs) -> dict[str, Bucket]:
        """The gradients that each plan exchanges, by its name."""
        return {f"allreduce-{place}": bucket for place, bucket in enumerate(buckets_of(given.trace, self.job.buckets))}


def _plan(bucket: Bucket, given: JobInputs, clock: Clock | None, on_progress: Callable[[Progress], None]) -> Plan:
    from treadle.planner.passes.collective.limits import Limits
    from treadle.planner.passes.collective.planning import CollectiveOptions, make_request, plan_collective, references

    sketch = given.others["sketch"]
    assert isinstance(sketch, Sketch)
    # A CPU process runs its threadblocks one after the other: more instances would only mean smaller messages.
    instances = 1 if all(device.kind == "cpu" for device in given.hardware.devices) else None
    return plan_collective(
        make_request("allreduce", given.hardware, sketch, bucket.bytes),
        options=CollectiveOptions("auto", instances, limits=Limits(time_s=given.limit_s)),
        clock=clock,
        inputs=references(given.hardware, sketch, None, {"hardware": "hardware.json", "sketch": "sketch.json"}),
        on_progress=on_progress,
    )


def _exchange(messages: Sequence[tuple[Sequence[str], str]], step: RankStep) -> None:
    """Average the gradients of each message, named by their parameters, with the artefacts in its folder."""
    import torch

    from treadle.runtime.collective.messages import load_executor

    parameters = dict(step.model.named_parameters())
    programs = [(names, load_executor(folder, step.rank)) for names, folder in messages]

    def exchange() -> None:
        for names, allreduce in programs:
            gradients = [gradient for name in names if (gradient := parameters[name].grad) is not None]
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            summed = allreduce(flat).div_(step.world)
            for gradient, part in zip(gradients, summed.split([g.numel() for g in gradients]), strict=True):
                gradient.copy_(part.view_as(gradient))

    step.exchanges.append(exchange)
