"""A swap plan as tasks of treadle.planner.timeline.simulator: three streams, copies that slow each other down, and the
bytes in use.

The operators run on `compute`, copies to the device on `in`, copies to the host on `out`; a drop is on none and takes
no time. A stream takes the ready node with the lowest (`serves`, index). While both copy streams
are busy each progresses at `Machine.together` of its own speed (SwapAdvisor, section 4.3 and 5.2).
"""

from __future__ import annotations

from typing import assert_never

from treadle.planner.passes.swap.decisions import SwapDecisions, SwapNode
from treadle.planner.passes.swap.problem import PERSISTENT, SwapProblem
from treadle.planner.timeline.simulator import Resource, Task

COMPUTE, IN, OUT = "compute", "in", "out"
BUS = "bus"
"""The resource that copies in both directions share, if any."""
MEMORY = "memory"


def tasks_of(decisions: SwapDecisions) -> tuple[tuple[Task, ...], tuple[Resource, ...]]:
    """One task per node, at the node's index, and the resources. Times in ns.

    A tensor takes its place with the node that copies it in or makes it, and frees it with its `drop`, its `out` that
    is not `early` or, if it is dead, with its last user. Simulate from `start_bytes`.
    """
    problem = decisions.problem
    machine = problem.machine
    slow, whole = machine.together
    shared = slow < whole
    size = footprints(decisions)
    leaving = frees_of(decisions)
    tasks = []
    for place, node in enumerate(decisions.nodes):
        taken = sum(size[tensor] for tensor in begins(problem, node))
        given = sum(size[tensor] for tensor in leaving[place])
        count = problem.tensors[node.item].bytes if node.kind != "compute" else 0
        match node.kind:
            case "compute":
                duration = problem.ops[node.item].time_ns
            case "in":
                duration = machine.in_ns(count)
            case "out":
                duration = machine.out_ns(count)
            case "drop":
                duration = 0
            case _:
                assert_never(node.kind)
        copies = node.kind in (IN, OUT)
        tasks.append(
            Task(
                name=label(problem, node),
                duration=duration,
                resources=() if node.kind == "drop" else (node.kind,),
                after=node.after,
                shares=((BUS, whole),) if shared and copies else (),
                alloc=((MEMORY, taken),) if taken else (),
                free=((MEMORY, given),) if given else (),
                priority=node.serves,
            )
        )
    streams = tuple(Resource(name, first="priority") for name in (COMPUTE, IN, OUT))
    # both ask for `whole` of 2 * slow: one copy runs at full speed, two at slow / whole of it
    bus = (Resource(BUS, shared=True, capacity=2 * slow),) if shared else ()
    return tuple(tasks), (*streams, *bus)


def start_bytes(decisions: SwapDecisions) -> dict[str, int]:
    """Bytes of the initial residents, for treadle.planner.timeline.simulator.simulate."""
    size = footprints(decisions)
    return {MEMORY: sum(size[resident.tensor] for resident in decisions.initial)}


def footprints(decisions: SwapDecisions) -> list[int]:
    """Bytes that each tensor takes up on the device: its object with allocator `pool`, else its own. A tensor of no
    bytes takes none."""
    problem = decisions.problem
    if decisions.allocator != "pool":
        return [tensor.bytes for tensor in problem.tensors]
    numbered = zip(problem.object_sizes, decisions.class_of, strict=True)
    objects = {size: decisions.pool[number - 1].object_bytes for size, number in numbered}
    return [objects.get(problem.object_bytes(tensor), 0) for tensor in range(len(problem.tensors))]


def label(problem: SwapProblem, node: SwapNode) -> str:
    """`conv1`, `in w1`, `out a0`, `drop w2`."""
    if node.kind == "compute":
        return problem.ops[node.item].id
    return f"{node.kind} {problem.tensors[node.item].id}"


def begins(problem: SwapProblem, node: SwapNode) -> tuple[int, ...]:
    """Tensors that a node puts on the device when it starts."""
    if node.kind == "compute":
        return problem.ops[node.item].outputs
    return (node.item,) if node.kind == "in" else ()


def dropped(decisions: SwapDecisions) -> list[int]:
    """The tensor of each drop without an early copy before it."""
    found: list[int] = []
    copied: set[int] = set()
    for node in decisions.nodes:
        if node.early:
            copied.add(node.item)
        elif node.kind == "drop":
            if node.item not in copied:
                found.append(node.item)
            copied.discard(node.item)
    return found


def frees_of(decisions: SwapDecisions) -> list[list[int]]:
    """Per node the tensors whose place it frees when it ends."""
    problem = decisions.problem
    touched: dict[int, int] = {}  # tensor on the device -> the last node so far that makes, brings or uses it
    frees: list[list[int]] = [[] for _ in decisions.nodes]
    for place, node in enumerate(decisions.nodes):
        if node.early:
            continue
        if node.kind in ("out", "drop"):
            touched.pop(node.item, None)
            frees[place].append(node.item)
            continue
        used = problem.ops[node.item].inputs if node.kind == "compute" else ()
        for tensor in (*used, *begins(problem, node)):
            touched[tensor] = place
    for tensor, place in touched.items():
        record = problem.tensors[tensor]
        if not record.kept and record.role not in PERSISTENT:
            frees[place].append(tensor)
    return frees
