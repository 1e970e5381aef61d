"""What `treadle plan checkpoint` is given, as a problem and the documents it was made from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from treadle.capture.formats import profiled_steps
from treadle.cli.output import note
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import InputRef
from treadle.planner.documents.scalars import Document, many
from treadle.planner.documents.selection import Selection
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.machine.planned_allreduce import planned_curve
from treadle.planner.passes.checkpoint.extract import CheckpointSetup, flat, link_of, problem_of, state_bytes_of
from treadle.planner.passes.checkpoint.modelled import Exchange, modelled, ring
from treadle.planner.passes.checkpoint.problem import CheckpointProblem
from treadle.planner.passes.checkpoint.recorded import recorded
from treadle.planner.passes.checkpoint.spans import Iteration, JobTimeline, silent, timeline_of
from treadle.probe.resolve import load_hardware

Given = tuple[CheckpointProblem, dict[str, InputRef]]
NO_MESSAGES = "the step of one process has no messages: gradients are exchanged as DistributedDataParallel would"


def by_hand(file: str) -> Given:
    """The problem in a file. Raises InputError for a file that holds another thing."""
    problem = store.load(file, CheckpointProblem)
    return problem, {"problem": _reference(Path(file).name, problem)}


def from_states(
    state_bytes: int, iteration_ns: int | None, hardware: str, nodes: int | None, setup: CheckpointSetup
) -> Given:
    """The problem of a job of which only the size of its states is known, and perhaps how long an iteration takes.
    Raises InputError as `problem_of`."""
    profile = load_hardware(hardware, nodes)
    timeline = None if iteration_ns is None else silent(iteration_ns)
    problem = problem_of(profile.name, profile, state_bytes, timeline, setup)
    note("no timeline of the training is known, so its messages are left out: the links are taken to be idle")
    if timeline is None:
        note("nor how long an iteration takes: the plan is for the shortest one that hides a checkpoint")
    return problem, {"hardware": _reference(hardware, profile)}


def from_traces(
    files: Sequence[str],
    state_bytes: int | None,
    hardware: str,
    nodes: int | None,
    collectives: str | None,
    setup: CheckpointSetup,
) -> Given:
    """The problem of a job with a timeline: a training step, or profiles of some of its machines. Raises InputError as
    `problem_of`, and for files that say too little."""
    profile = load_hardware(hardware, nodes)
    inputs = {"hardware": _reference(hardware, profile)}
    machines = [profiled_steps(file) for file in files]
    step = None
    if not any(machines):
        step = store.load(files[0], Trace)
        machines = [(store.load(file, Trace),) for file in files]
        inputs |= {"trace": _reference(Path(files[0]).name, step)} if len(files) == 1 else {}
    planned = None if collectives is None else store.load(collectives, Selection)
    if planned is not None and collectives is not None:
        inputs["collectives"] = _reference(collectives, planned)
    size = state_bytes or _states_of(step, files[0])
    timeline = _timeline(machines, profile, planned, files)
    return problem_of(Path(files[0]).name, profile, size, timeline, setup), inputs


def _timeline(
    machines: Sequence[Sequence[Trace]], hardware: Hardware, planned: Selection | None, files: Sequence[str]
) -> JobTimeline:
    """The timeline of the steps of some machines. Raises InputError where they do not show when messages were sent."""
    devices = hardware.devices_per_node
    seen = list[list[Iteration]]()
    for file, steps in zip(files, machines, strict=True):
        iterations = [each for step in steps if (each := recorded(step, devices)) is not None]
        if 0 < len(iterations) < len(steps) or not steps:
            found = f"found messages in {len(iterations)} of {many(len(steps), 'step')}"
            raise InputError(f"{found}, expected them in all", where=file)
        seen.append(iterations)
    if not all(seen):
        if len(files) > 1 or len(machines[0]) > 1 or machines[0][0].source != "torch-aot":
            found = "found no messages in it, expected a profile of several processes that train together"
            raise InputError(found, where=files[[*map(bool, seen)].index(False)])
        note(NO_MESSAGES)
        seen = [[modelled(_with_times(machines[0][0], hardware), _exchange(hardware, planned))]]
    timeline = timeline_of(seen, link_of(hardware)[0], files[0])
    if not timeline.messages:
        note("all messages stay within a machine of the profile, so its links are idle all the time")
    return timeline


def _exchange(hardware: Hardware, planned: Selection | None) -> Exchange:
    return ring(flat(hardware, shared=False)) if planned is None else planned_curve(planned, hardware).at


def _states_of(step: Trace | None, where: str) -> int:
    """Bytes that a device holds. Raises InputError for a trace without tensors."""
    size = 0 if step is None else state_bytes_of(step)
    if not size or step is None:
        raise InputError("found no weights in it, expected --states with their size and their states'", where=where)
    if not any(op.phase == "optimizer" for op in step.ops):
        note("the trace has no optimizer, so no states of one are counted: capture with --optimizer, or name --states")
    return size


def _reference(name: str, document: Document) -> InputRef:
    return InputRef(file=name, digest=store.digest(document))


def _with_times(trace: Trace, hardware: Hardware) -> Trace:
    """The trace with modelled times where it has none."""
    if trace.costs.model != "absent":
        return trace
    from treadle.capture.costs import with_roofline  # imports torch, which takes seconds

    return with_roofline(trace, hardware)
