"""What a swap plan allocates and frees on the device, event by event, in its simulated schedule."""

from __future__ import annotations

from treadle.planner.passes.swap.decisions import SwapDecisions
from treadle.planner.passes.swap.timeline_of import begins, footprints, frees_of, label, start_bytes, tasks_of
from treadle.planner.timeline.allocations import Allocations, MemoryEvent, PlannedBlock
from treadle.planner.timeline.simulator import simulate


def allocations(decisions: SwapDecisions) -> Allocations:
    """Blocks of a plan that its checker accepts, by role: tensors on the device, whole objects with allocator `pool`.
    A tensor that comes back is a new block, named after the copy. Addresses are the plan's, if it has any."""
    problem = decisions.problem
    sizes = footprints(decisions)
    tasks, resources = tasks_of(decisions)
    schedule = simulate(tasks, resources, start_bytes(decisions))
    addressed = decisions.allocator != "bytes"
    blocks: list[PlannedBlock] = []
    events: list[MemoryEvent] = []
    live: dict[int, int] = {}

    def allocate(tensor: int, time_ns: int, name: str, line: int, address: int) -> None:
        live[tensor] = len(blocks)
        record = problem.tensors[tensor]
        events.append(MemoryEvent(time_ns, len(blocks), freed=False))
        blocks.append(PlannedBlock(record.id, record.role, sizes[tensor], line, name, address if addressed else None))

    for resident in decisions.initial:
        allocate(resident.tensor, 0, "on the device from the start", 0, resident.at)
    frees = frees_of(decisions)
    for time_ns, _, place, freed in sorted(_moments(schedule.start, schedule.end)):
        node = decisions.nodes[place]
        if freed:
            events += [MemoryEvent(time_ns, live.pop(tensor), freed=True) for tensor in frees[place]]
            continue
        for tensor, at in zip(begins(problem, node), node.at or [0] * len(begins(problem, node)), strict=True):
            allocate(tensor, time_ns, label(problem, node), place, at)
    return Allocations(tuple(blocks), tuple(events))


def _moments(start: list[int], end: list[int]) -> list[tuple[int, int, int, bool]]:
    """(time, round, node, whether it ends) of starts and ends. At one time ends come before starts; a node of no
    duration ends right after its own start."""
    starts = [(time_ns, 1, place, False) for place, time_ns in enumerate(start)]
    ends = [(time_ns, int(time_ns == start[place]), place, True) for place, time_ns in enumerate(end)]
    return starts + ends
