"""A job, end to end: capture, plan, check, generate, run beside plain DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from treadle.cli.output import require_apart
from treadle.job.train import RankResult, Work, work
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.job import Job
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time
from treadle.planner.documents.sketch import Sketch
from treadle.planner.documents.store import Document, load, save
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import CheckFailed
from treadle.planner.graph.gradients import Bucket, buckets_of
from treadle.planner.resources import locate
from treadle.planner.search.clock import Clock

if TYPE_CHECKING:
    from treadle.planner.passes.memory.planning import Budget

Say = Callable[[str], None]


@dataclass(frozen=True)
class Planned:
    """Everything decided before anything runs. `collectives` maps each message's plan name to its bucket."""

    job: Job
    hardware: Hardware
    sketch: Sketch
    trace: Trace
    plans: dict[str, Plan]
    collectives: dict[str, Bucket]
    folder: Path

    @property
    def world(self) -> int:
        return self.hardware.ranks


def plan_job(path: Path, out: Path, say: Say, clock: Clock | None = None) -> Planned:
    """Capture the job's model, plan memory and one allreduce for each gradient message, check, and generate.

    Writes documents and artefacts under `out`. `clock` limits the planning: each part has an equal share of the time
    that is left when it begins, and where its limit fires that is said. Raises InputError for a malformed job and
    CheckFailed when a plan does not stand its independent check.
    """
    from treadle.capture.costs import with_roofline
    from treadle.capture.graph import capture
    from treadle.capture.load import load_function
    from treadle.planner.passes.memory.planning import parse_budget
    from treadle.probe.resolve import load_hardware

    job = load(path, Job)
    budget = parse_budget(job.memory.budget, where=f"{path}: $.memory.budget")
    machine, guidance = beside(path, job.hardware), beside(path, job.collective.sketch)
    for name in ("trace.json", "hardware.json", "sketch.json", "report.html"):
        require_apart(str(out / name), str(path), machine, guidance)
    hardware = load_hardware(machine, job.nodes)
    sketch = load(locate("sketches", guidance), Sketch)
    say(f"capture {job.model}")
    trace = with_roofline(replace(capture(load_function(job.model, path.parent), job.model), entry=job.model), hardware)
    say(f"  {len(trace.ops)} operators, {len(trace.gradient_order)} gradients")
    plans, collectives = _plans(job, budget, hardware, sketch, trace, say, clock)
    save(trace, out / "trace.json")
    save(hardware, out / "hardware.json")
    save(sketch, out / "sketch.json")
    for name, plan in plans.items():
        save(plan, out / f"{name}.plan.json")
    planned = Planned(job, hardware, sketch, trace, plans, collectives, out)
    say(f"check {len(plans)} plans against their inputs")
    _check(planned)
    _generate(planned)
    say(f"generated {out / 'memory'} and {', '.join(str(out / name) for name in collectives)}")
    return planned


def _plans(
    job: Job, budget: Budget, hardware: Hardware, sketch: Sketch, trace: Trace, say: Say, clock: Clock | None
) -> tuple[dict[str, Plan], dict[str, Bucket]]:
    from treadle.planner.passes.collective.limits import Limits
    from treadle.planner.passes.collective.planning import plan_collective
    from treadle.planner.passes.memory.planning import MemoryOptions, plan_memory

    limit_s = None if clock is None else clock.limit_s
    messages = buckets_of(trace, job.collective.buckets)

    def share(parts: int) -> Clock | None:
        """The clock of the next part, when so many are to be planned."""
        return None if clock is None else clock.share(parts)

    say(f"plan memory under {job.memory.budget}")
    options = MemoryOptions() if limit_s is None else MemoryOptions(time_limit_s=limit_s)
    memory = plan_memory(trace, budget=budget, options=options, clock=share(1 + len(messages)), trace_file="trace.json")
    plans: dict[str, Plan] = {"memory": memory}
    say(f"  {_quality(memory)}")
    _say_ended(say, memory, limit_s)
    buckets = {}
    # A CPU process runs its threadblocks one after the other, so more instances would only mean smaller messages.
    instances = 1 if all(device.kind == "cpu" for device in hardware.devices) else None
    for place, bucket in enumerate(messages):
        name = f"allreduce-{place}"
        say(f"plan {name} of {format_bytes(bucket.bytes)}")
        plans[name] = plan_collective(
            "allreduce",
            hardware,
            sketch,
            size_bytes=bucket.bytes,
            method="auto",
            instances=instances,
            limits=Limits(time_s=limit_s),
            clock=share(len(messages) - place),
            hardware_file="hardware.json",
            sketch_file="sketch.json",
        )
        buckets[name] = bucket
        say(f"  {_quality(plans[name])}")
        _say_ended(say, plans[name], limit_s)
    return plans, buckets


def _say_ended(say: Say, plan: Plan, limit_s: float | None) -> None:
    if plan.provenance.interrupted:
        say("  interrupted: this is the best plan so far")
    elif plan.provenance.limit_fired:
        share = "the time limit" if limit_s is None else f"its share of the time limit of {limit_s:g} s"
        say(f"  {share} ended its search: this is the best plan so far")


def _quality(plan: Plan) -> str:
    from treadle.planner.passes import pass_of

    proof = plan.certificate
    quality = (
        f"proved {pass_of(plan).optimal(plan)}" if proof.optimal else f"within {proof.gap:.1%} of the proven bound"
    )
    peak = f", peak {format_bytes(plan.prediction.peak_bytes)}" if plan.prediction.peak_bytes else ""
    return f"{format_time(plan.prediction.time_us * 1e3)} predicted{peak}, {quality}"


def _check(planned: Planned) -> None:
    from treadle.check.plan import check_against, check_plan

    inputs: dict[str, Document] = {"trace": planned.trace, "hardware": planned.hardware, "sketch": planned.sketch}
    for name, plan in planned.plans.items():
        findings = check_plan(plan) + check_against(plan, inputs)
        if findings:
            raise CheckFailed(f"{name}: the plan does not stand its check", tuple(findings))


def _generate(planned: Planned) -> None:
    from treadle.codegen.emit import write
    from treadle.codegen.targets import generate

    for name, plan in planned.plans.items():
        write(generate(plan, f"{name}.plan.json", planned.trace), planned.folder / name)


def run_job(planned: Planned, path: Path, say: Say) -> list[RankResult]:
    """Train on every rank, plainly and under the plans; results by rank."""
    from treadle.runtime.launch import launch

    say(f"train {planned.job.run.steps} steps on {planned.world} processes, plainly and under the plans")
    out = planned.folder
    order = Work(
        model=planned.job.model,
        folder=str(path.parent),
        memory_plan=str(out / "memory.plan.json"),
        trace=str(out / "trace.json"),
        messages=tuple((bucket.parameters, str(out / name)) for name, bucket in planned.collectives.items()),
        steps=planned.job.run.steps,
        learning_rate=planned.job.run.learning_rate,
        seed=planned.job.run.seed,
    )
    return launch(planned.world, work, (order,))


def beside(path: Path, name: str) -> str:
    """A file named in a job, looked for beside the job file first."""
    return str(path.parent / name) if (path.parent / name).is_file() else name
