"""A job, end to end: capture, plan, check, generate, train under the plans and under plain DistributedDataParallel."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from treadle.cli.limit import clock_of
from treadle.cli.output import listed, live_line
from treadle.cli.progress import ProgressLine
from treadle.cli.tuned_lines import tuned_line
from treadle.job.part import JobInputs, JobPart, JobPlan, RankStep
from treadle.job.train import RankResult, TrainingTask, work
from treadle.passes import room
from treadle.planner.documents.job import Job
from treadle.planner.documents.overwrite import require_replaceable
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time
from treadle.planner.documents.sources import beside, load_named
from treadle.planner.documents.store import load, save
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes import ROOMS
from treadle.planner.passes.interface import Inputs
from treadle.planner.search.clock import Clock

Say = Callable[[str], None]


@dataclass(frozen=True)
class PlannedPart:
    """The part of one pass with its plans by name."""

    part: JobPart
    plans: dict[str, Plan]


@dataclass(frozen=True)
class Planned:
    """Everything decided before anything runs."""

    job: Job
    given: JobInputs
    parts: tuple[PlannedPart, ...]
    folder: Path
    reused: bool = False
    """Whether costs were measured in an earlier run."""

    @property
    def plans(self) -> dict[str, Plan]:
        """All plans by name."""
        return {name: plan for part in self.parts for name, plan in part.plans.items()}

    @property
    def losses(self) -> str:
        """What loses a part of the gradients, in a few words; nothing where no plan does."""
        return ", ".join(filter(None, (part.part.loses(part.plans) for part in self.parts)))

    @property
    def inputs(self) -> Inputs:
        """The documents that plans were made from, by role."""
        return {"trace": self.given.trace, "hardware": self.given.hardware, **self.given.others}

    @property
    def world(self) -> int:
        return self.given.hardware.ranks


def plan_job(
    path: Path, out: Path, say: Say, clock: Clock | None = None, *, measure: bool = False, fresh: bool = False
) -> Planned:
    """Capture the job's model, plan what each pass has a part in, check, and generate.

    With `measure` the costs of a step on CPUs are those of this machine, from the cache unless `fresh`; otherwise they
    are modelled from the profile.
    Writes documents and artefacts under `out`. `clock` limits the planning, not the measuring: each part has an equal
    share of the time that is left when it begins, and a limit that fired is reported. Raises InputError for a malformed
    job and CheckFailed when a plan fails its independent check.
    """
    from treadle.capture.costs import with_roofline
    from treadle.capture.graph import capture
    from treadle.capture.load import load_function
    from treadle.job.costs import with_step_costs
    from treadle.job.kept import CostCache
    from treadle.planner.graph.implementations.convolution import with_reading
    from treadle.probe.resolve import load_hardware

    job = load(path, Job)
    parts = [part for name in ROOMS if (part := room(name).job_part(job, str(path)))]
    machine = beside(path, job.hardware)
    hardware = load_hardware(machine, job.nodes)
    wants = {role: wanted for part in parts for role, wanted in part.wants(hardware).items()}
    places = {role: beside(path, want.name) for role, want in wants.items() if want.name is not None}
    roles = {
        "trace": "trace",
        "hardware": "hardware",
        **{role: str(want.kind.__struct_config__.tag) for role, want in wants.items()},
    }
    kinds = {f"{role}.json": kind for role, kind in roles.items()}
    for name, kind in {**kinds, "report.html": "page", "report.perfetto.json": "timeline"}.items():
        require_replaceable(out / name, kind, [str(path), machine, *places.values()])
    _say_replaced(out, job, say)
    others: Inputs = {role: load_named(wants[role].kind, place) for role, place in places.items()}
    say(f"capture {job.model}")
    captured = replace(capture(load_function(job.model, path.parent), job.model), entry=job.model)
    say(f"  {len(captured.ops)} operators, {len(captured.gradient_order)} gradients")
    for part in parts:
        others = {**others, **part.recorded(_task(job, path), hardware, say)}
    unplanned, cache = None, CostCache(fresh=fresh)
    measured = measure and all(device.kind == "cpu" for device in hardware.devices)
    if job.measure_top and not measured:
        say("  measure_top needs a run on a profile of CPUs: predictions decide here")
    if measured:
        modelled = with_roofline(with_reading(captured), hardware)
        began = time.monotonic()
        if clock is not None:
            say("  the time limit is for the plans, not for what is measured before them")
        for part in parts:
            hardware, others = part.with_measured(modelled, hardware, others, say, cache)
        trace, unplanned = with_step_costs(modelled, parts, _task(job, path), hardware.ranks, say, cache)
        clock = clock and clock.paused(time.monotonic() - began)
    else:
        trace = with_roofline(captured, hardware)
    top = job.measure_top if measured else 0
    given = JobInputs(trace, hardware, others, None if clock is None else clock.limit_s, unplanned, measure_top=top)
    planned = Planned(job, given, _plans(parts, given, say, clock), out, cache.reused)
    for name in planned.plans:
        require_replaceable(out / f"{name}.plan.json", "plan")
    _say_stays(planned, say)
    for role, document in planned.inputs.items():
        save(document, out / f"{role}.json")
    for name, plan in planned.plans.items():
        save(plan, out / f"{name}.plan.json")
    say(f"check {len(planned.plans)} plans against their inputs")
    _check(planned)
    _generate(planned)
    folders = [", ".join(str(out / name) for name in part.plans) for part in planned.parts]
    say(f"generated {' and '.join(folders)}")
    return planned


def _say_replaced(out: Path, job: Job, say: Say) -> None:
    """Report that the folder holds a job of another model, whose files are about to be replaced."""
    try:
        older = load(out / "trace.json", Trace).entry
    except InputError:
        return
    if older not in (None, job.model):
        say(f"{out} holds the job of {older}, which this one replaces")


def _say_stays(planned: Planned, say: Say) -> None:
    """Report plans of an older job in the folder that are none of this one's."""
    names = {path.name.removesuffix(".plan.json") for path in planned.folder.glob("*.plan.json")}
    if stays := sorted(names - set(planned.plans)):
        say(f"{planned.folder} keeps plans of an older job, which do not fit this one: {listed(stays)}")


def _plans(parts: Sequence[JobPart], given: JobInputs, say: Say, clock: Clock | None) -> tuple[PlannedPart, ...]:
    """Every part with its plans. A live line shows the plan at work and how far its search is."""
    left = sum(len(part.plans(given)) for part in parts)
    planned, command = [], clock or clock_of(None)
    with live_line() as show:
        line = ProgressLine(show, lambda: command.elapsed_s)
        for part in sorted(parts, key=lambda part: not part.keeps):
            made: dict[str, Plan] = {}
            for item in part.plans(given):
                say(f"plan {item.title}")
                line.begin(item.name)
                made[item.name] = plan = _planned(item, None if clock is None else clock.share(left), line)
                left -= 1
                say(f"  {_quality(plan)}")
                for tuned in plan.provenance.tuned:
                    say(f"  {tuned_line(tuned)}")
                _say_ended(say, plan, given.limit_s)
            planned.append(PlannedPart(part, made))
            prediction = part.prediction(made)
            given = given._replace(predictions=(*given.predictions, prediction))
            if kept := prediction.kept_bytes if part.keeps else 0:
                say(f"  {format_bytes(kept)} are kept between steps, which other plans leave free")
                given = given._replace(kept_bytes=given.kept_bytes + kept)
    return tuple(sorted(planned, key=lambda made: parts.index(made.part)))


def _planned(item: JobPlan, clock: Clock | None, line: ProgressLine) -> Plan:
    """The plan of one item. What commands say of `--measure`, jobs ask for as `measure_top`."""
    from treadle.runtime.trial_ranks import WHERE

    try:
        return item.plan(clock, line)
    except InputError as error:
        if error.where != WHERE:
            raise
        raise InputError(str(error.args[0]), where="measure_top") from None


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

    for name, plan in planned.plans.items():
        findings = check_plan(plan) + check_against(plan, planned.inputs)
        if findings:
            raise CheckFailed(f"{name}: the plan fails its check", tuple(findings))


def _generate(planned: Planned) -> None:
    from treadle.codegen.emit import write
    from treadle.codegen.targets import generate

    for name, plan in planned.plans.items():
        write(generate(plan, f"{name}.plan.json", planned.given.trace), planned.folder / name)


def run_job(planned: Planned, path: Path, say: Say) -> list[RankResult]:
    """Train on every rank, plainly and under the plans; results by rank."""
    from treadle.runtime.launch import launch

    say(f"train {planned.job.run.steps} steps on {planned.world} processes, plainly and under the plans")
    changes = (planned_part.part.training(planned.given, planned.folder) for planned_part in planned.parts)
    task = _task(planned.job, path, tuple(change for change in changes if change is not None))
    task = dataclasses.replace(task, lossy=bool(planned.losses))
    return launch(planned.world, work, (task,))


def _task(job: Job, path: Path, parts: tuple[Callable[[RankStep], None], ...] = ()) -> TrainingTask:
    return TrainingTask(
        model=job.model,
        folder=str(path.parent),
        parts=parts,
        steps=job.run.steps,
        learning_rate=job.run.learning_rate,
        seed=job.run.seed,
    )
