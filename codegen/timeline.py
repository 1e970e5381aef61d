"""The predicted timeline of a plan as tasks, resources and schedule, for printing and for Perfetto."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, assert_never

from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.simulate_program import simulate_program
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.fusion.decisions import FusionDecisions
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.program import Drop, RunBackward, RunForward, Stage
from treadle.planner.passes.memory.simulate import moments
from treadle.planner.passes.swap.decisions import SwapDecisions
from treadle.planner.passes.swap.timeline_of import start_bytes, tasks_of
from treadle.planner.timeline.simulator import Resource, Schedule, Task, simulate

STREAM, MEMORY = "stream", "memory"


class Timeline(NamedTuple):
    """Times in ns."""

    tasks: tuple[Task, ...]
    resources: tuple[Resource, ...]
    schedule: Schedule

    def busy_ns(self) -> dict[str, int]:
        """How long each resource works for one task at a time, by name."""
        ran = zip(self.tasks, self.schedule.start, self.schedule.end, strict=True)
        busy = {resource.name: 0 for resource in self.resources if not resource.shared}
        for task, start, end in ran:
            for name in task.resources:
                busy[name] += end - start
        return busy


def simulate_plan(plan: Plan) -> Timeline:
    """A memory plan is one stream of operators with the bytes in use; a collective plan is its messages on links and
    ports, as its out-of-place program sends them; a swap plan is operators and copies in both directions; a fusion plan
    is its launches, those with a collective on a stream of their own."""
    match plan.decisions:
        case CollectiveDecisions():
            return _collective(plan.decisions)
        case SwapDecisions():
            tasks, resources = tasks_of(plan.decisions)
            return Timeline(tasks, resources, simulate(tasks, resources, start_bytes(plan.decisions)))
        case FusionDecisions():
            return _fusion(plan.decisions)
        case MemoryDecisions():
            return _memory(plan.decisions)
        case _:
            assert_never(plan.decisions)


def _collective(decisions: CollectiveDecisions) -> Timeline:
    """The messages alone: the steps at their ends take no time."""
    program = lower(decisions)
    simulation = simulate_program(program, decisions)
    first = sum(1 for _ in program.steps())
    schedule = simulation.schedule
    tasks = tuple(Task(task.name, task.duration, task.resources) for task in simulation.tasks[first:])
    return Timeline(
        tasks,
        tuple(Resource(resource.name) for resource in simulation.resources),
        Schedule(schedule.start[first:], schedule.end[first:], schedule.makespan, {}, {}),
    )


def _fusion(decisions: FusionDecisions) -> Timeline:
    tasks = tuple(
        Task(stage.name, stage.end_ns - stage.start_ns, (f"stream {at}",), release=stage.start_ns)
        for stage, at in zip(decisions.stages, _streams(decisions), strict=True)
    )
    resources = tuple(Resource(name) for name in sorted({name for task in tasks for name in task.resources}))
    return Timeline(tasks, resources, simulate(tasks, resources))


def _streams(decisions: FusionDecisions) -> Iterator[int]:
    """The stream of each launch: the first, but launches that overlap have one each."""
    stream = 0
    for stage in decisions.stages:
        stream = stream + 1 if stage.overlaps else 0
        yield stream


def _memory(decisions: MemoryDecisions) -> Timeline:
    problem = decisions.problem
    tasks = []
    again = False
    for place, (instruction, moment) in enumerate(
        zip(decisions.program, moments(problem, decisions.program), strict=True)
    ):
        match instruction:
            case Stage(k):
                again, duration = k <= len(problem.bwd), 0
            case RunForward(node, impl, inplace):
                duration = problem.fwd[node].time(impl, again, inplace)
            case RunBackward(node, impl):
                duration = problem.bwd[node].impls[impl].time_ns
            case Drop():
                duration = 0
            case _:
                assert_never(instruction)
        held = (MEMORY, moment.activations + moment.gradients + moment.workspace)
        after = (place - 1,) if place else ()
        tasks.append(Task(moment.label, duration, (STREAM,), after, alloc=(held,), free=(held,)))
    resources = (Resource(STREAM),)
    return Timeline(tuple(tasks), resources, simulate(tasks, resources, {MEMORY: problem.base_bytes}))
