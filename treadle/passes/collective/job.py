"""What the collective pass plans in a job: an allreduce for each message of gradients."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.passes.interface import Given, JobPart, Step, Wanted
from treadle.planner.documents.job import Job
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.documents.sketch import Sketch
from treadle.planner.graph.gradients import Bucket, buckets_of
from treadle.planner.search.clock import Clock


def job_part(job: Job) -> JobPart:
    def steps(given: Given) -> Sequence[Step]:
        messages = buckets_of(given.trace, job.collective.buckets)
        return [_step(f"allreduce-{place}", bucket, given) for place, bucket in enumerate(messages)]

    return JobPart(steps, {"sketch": Wanted(job.collective.sketch, "sketches", Sketch)})


def _step(name: str, bucket: Bucket, given: Given) -> Step:
    from treadle.planner.passes.collective.limits import Limits
    from treadle.planner.passes.collective.planning import plan_collective

    sketch = given.others["sketch"]
    assert isinstance(sketch, Sketch)

    def plan(clock: Clock | None) -> Plan:
        return plan_collective(
            "allreduce",
            given.hardware,
            sketch,
            size_bytes=bucket.bytes,
            method="auto",
            # A CPU process runs its threadblocks one after the other: more instances would only mean smaller messages.
            instances=1 if all(device.kind == "cpu" for device in given.hardware.devices) else None,
            limits=Limits(time_s=given.limit_s),
            clock=clock,
            hardware_file="hardware.json",
            sketch_file="sketch.json",
        )

    return Step(name, f"{name} of {format_bytes(bucket.bytes)}", plan, bucket)
