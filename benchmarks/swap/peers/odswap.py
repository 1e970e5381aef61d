"""ODSwap, the on-demand swapping that SwapAdvisor is compared with (section 5.1), as the plan of its decisions.

When the next operator does not fit, the least recently used tensors are evicted until the buddy allocator has a block
for it. This happens one operator ahead, while the one before it runs. In addition a prefetch thread follows the graph's
order and copies in the inputs of the operators after the next one, as long as memory is free. Parameters that are on
the device when an iteration ends stay for the next one if their addresses do not change. The order is the graph's.
"""

from __future__ import annotations

from benchmarks.swap.peers.device import Device
from benchmarks.swap.peers.memory import Buddy
from benchmarks.swap.peers.peer import Outcome
from treadle.planner.passes.swap.problem import PERSISTENT, SwapProblem


def plan(problem: SwapProblem) -> Outcome:
    """The plan. `needed_bytes` is a lower bound: whole blocks for the tensors of one operator."""
    besides = problem.machine.memory_bytes - problem.arena_bytes
    needed = besides + max(
        sum(
            1 << (problem.tensors[t].bytes - 1).bit_length()
            for t in (*op.inputs, *op.outputs)
            if problem.tensors[t].bytes
        )
        for op in problem.ops
    )
    first = _run(problem, ())
    if first is None:
        return Outcome(None, needed)
    carried = _persistent(first)
    while True:
        found = _run(problem, carried)
        if found is None:
            if not carried:
                return Outcome(None, needed)
            carried = carried[:-1]
            continue
        again = [
            tensor
            for tensor in carried
            if tensor in found.here and found.here[tensor].room.address == found.initial[tensor]
        ]
        if again == carried:
            return Outcome(found.finish("offset"), needed)
        carried = again


def _persistent(device: Device) -> list[int]:
    """Parameters and states on the device, the least recently used last."""
    held = [tensor for tensor in device.here if device.problem.tensors[tensor].role in PERSISTENT]
    return sorted(held, key=lambda tensor: (-device.here[tensor].touched, tensor))


def _run(problem: SwapProblem, carried: list[int] | tuple[int, ...]) -> Device | None:
    device = Device(problem, Buddy(problem.arena_bytes))
    if not device.start(carried):
        return None
    ahead = 0
    for op, record in enumerate(problem.ops):
        needed = set(record.inputs) | set(record.outputs)
        started = device.computes[-2:-1]  # the operator whose end lets the one before this start
        for tensor in record.inputs:
            while not device.bring(tensor, op, started):
                if not _evict(device, needed, op, started):
                    return None
        if not _make_room(device, op, needed, started):
            return None
        ahead = max(ahead, op + 1)
        while ahead < len(problem.ops) and _prefetch(device, ahead):
            ahead += 1
    return device


def _make_room(device: Device, op: int, needed: set[int], started: list[int]) -> bool:
    """Runs the operator, after evictions that its results need."""
    sizes = [device.problem.tensors[tensor].bytes for tensor in device.problem.ops[op].outputs]
    while not _fits(device, [size for size in sizes if size]):
        if not _evict(device, needed, op, started):
            return False
    return device.run(op)


def _fits(device: Device, sizes: list[int]) -> bool:
    """Whether there are blocks for all of these now."""
    taken = []
    for size in sizes:
        room = device.memory.take(size)
        if room is None:
            break
        taken.append((room, size))
    for room, size in reversed(taken):
        device.memory.give(room, size, None)
    return len(taken) == len(sizes)


def _evict(device: Device, needed: set[int], op: int, started: list[int]) -> bool:
    """Evicts the least recently used tensor; False if all resident ones are needed now."""
    others = (tensor for tensor in device.here if tensor not in needed)
    victim = min(others, key=lambda tensor: (device.here[tensor].touched, tensor), default=None)
    if victim is None:
        return False
    device.leave(victim, op, started)
    return True


def _prefetch(device: Device, op: int) -> bool:
    """Copies in the operator's inputs that are on the host; False if memory is full."""
    started = device.computes[-2:-1]
    return all(device.bring(tensor, op, started) for tensor in device.problem.ops[op].inputs if device.valid[tensor])
