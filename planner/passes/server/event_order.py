"""Who does what after which chunk: the two engines on the chunks of one key, as tasks of the simulator.

Tall: the core of a chunk adds its copies as they arrive, in the order of workers, and optimizes it at once. Wide: a
team of all cores begins when the whole key has arrived; each adds its slice, and when all have done so each optimizes
its slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from treadle.planner.passes.server.decisions import ServerDecisions
from treadle.planner.passes.server.problem import Engine
from treadle.planner.passes.server.times import on_network
from treadle.planner.timeline.simulator import Resource, Task, simulate

MIB = 1 << 20
ENGINES: tuple[Engine, ...] = ("tall", "wide")
MOST_COPIES = 1 << 14
"""The most chunks times workers of a key that are followed one by one."""


class ArrivingChunk(NamedTuple):
    """A chunk: its core, when the copy of each worker has arrived, and ns for adding one and for optimizing."""

    core: int
    arrivals: tuple[int, ...]
    add: int
    optimize: int


class Results(NamedTuple):
    """When the first and the last new chunk of a key are there, in ns."""

    first: int
    last: int


def results(engine: Engine, chunks: Sequence[ArrivingChunk], cores: int) -> Results:
    """The chunks of one key on `cores` cores."""
    tasks = tall_tasks(chunks) if engine == "tall" else wide_tasks(chunks, cores)
    schedule = simulate(tasks, [Resource(f"core {core}") for core in range(cores)])
    ends = [end for task, end in zip(tasks, schedule.end, strict=True) if task.name.startswith("optimize")]
    return Results(min(ends), max(ends))


def tall_tasks(chunks: Sequence[ArrivingChunk]) -> list[Task]:
    """An `add` for each copy and an `optimize` for each chunk, on the core of the chunk."""
    tasks = list[Task]()
    for number, chunk in enumerate(chunks):
        core, before = (f"core {chunk.core}",), tuple[int, ...]()
        for worker, arrival in enumerate(chunk.arrivals):
            name = f"add {number} of worker {worker}"
            tasks.append(Task(name, chunk.add, core, before, priority=number, release=arrival))
            before = (len(tasks) - 1,)
        tasks.append(Task(f"optimize {number}", chunk.optimize, core, before, priority=number))
    return tasks


def wide_tasks(chunks: Sequence[ArrivingChunk], cores: int) -> list[Task]:
    """An `add` and an `optimize` of its slice for each core."""
    arrived = max(max(chunk.arrivals) for chunk in chunks)
    added = sum(chunk.add * len(chunk.arrivals) for chunk in chunks)
    optimized = sum(chunk.optimize for chunk in chunks)
    adds = [Task(f"add slice {core}", -(-added // cores), (f"core {core}",), release=arrived) for core in range(cores)]
    every = tuple(range(cores))
    return adds + [
        Task(f"optimize slice {core}", -(-optimized // cores), (f"core {core}",), every) for core in range(cores)
    ]


def followed_key(decisions: ServerDecisions) -> tuple[str, list[ArrivingChunk]] | None:
    """The first key of few enough chunks, by its name, and these chunks; they arrive from all workers as fast as the
    network takes them."""
    problem, work = decisions.problem, decisions.problem.machine.work
    workers = problem.workers // problem.racks if decisions.two_level else problem.workers
    pairs = zip(problem.keys, decisions.places, strict=True)
    key, places = next(((key, own) for key, own in pairs if len(own) * workers <= MOST_COPIES), (None, ()))
    if key is None:
        return None
    network = max((part.time_ns for part in decisions.parts if on_network(part.part)), default=0)
    found, begun, model = [], 0, problem.bytes
    for slot in places:
        size = min(decisions.chunk_bytes, key.bytes - begun)
        begun += size
        add = -(-size * (work.receive_ns_per_MB + work.add_ns_per_MB) // MIB) + work.message_ns
        arrivals = (-(-network * begun // model),) * workers
        found.append(ArrivingChunk(slot, arrivals, add, -(-size * work.optimize_ns_per_MB // MIB)))
    return key.name, found
