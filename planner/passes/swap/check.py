"""The checker of swap plans: it recomputes everything from the decisions and shares no code with the methods.

Whatever time its copies and operators take, a plan must (SwapAdvisor, section 4.3):

* run every operator once, in an order in which each finds what it waits for, one after the other;
* have every input on the device while its operator runs, and wait for it;
* write nothing while it is copied to the host, early or not;
* never put two tensors into one place: an arrival waits for the departure of the tensor before it, a departure for the
  last use;
* never lose data: the host is read only where it has the newest value, a tensor whose newest value is only on the
  device is not dropped while it is needed, what was written to a parameter is kept or copied out;
* end in the state in which it began, so that it can be repeated;
* keep within the memory of device and host;
* state the figures of its simulation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from treadle.planner.documents.scalars import format_bytes
from treadle.planner.passes.swap.decisions import SwapDecisions
from treadle.planner.passes.swap.happens_before import happens_before
from treadle.planner.passes.swap.overlap import clashes, crowd
from treadle.planner.passes.swap.residencies import START, Residency, Walk
from treadle.planner.passes.swap.timeline_of import MEMORY, footprints, label, start_bytes, tasks_of
from treadle.planner.timeline.simulator import simulate


def check(decisions: SwapDecisions) -> list[str]:
    """Errors of the plan by node and tensor; none for a safe plan with correct figures."""
    found = [f"{path}: found {seen}, expected {expected}" for path, seen, expected in decisions.problems()]
    found = found or [*_order(decisions), *_form(decisions), *_layout(decisions)]
    if found:
        return found
    order = happens_before(decisions.nodes)
    walk = Walk(decisions, order)
    walk.run()
    found = [*walk.findings, *_places(decisions, walk), *_memory(decisions, walk), *_host(decisions)]
    return found or list(_figures(decisions))


def _order(decisions: SwapDecisions) -> Iterator[str]:
    """Every operator once, after what it waits for, and the compute nodes in this order, each after the one before."""
    ops, tensors = decisions.problem.ops, decisions.problem.tensors
    place = {op: at for at, op in enumerate(decisions.order)}
    if len(decisions.order) != len(ops) or len(place) != len(ops):
        count = len(decisions.order)
        yield f"order: {count} operators, {len(place)} of them different, expected each of {len(ops)} once"
        return
    maker = {tensor: at for at, op in enumerate(ops) for tensor in op.outputs}
    for at, op in enumerate(ops):
        for tensor in op.inputs:
            if tensor in maker and place[maker[tensor]] > place[at]:
                yield f"order: {op.id} runs before {ops[maker[tensor]].id}, which makes {tensors[tensor].id} for it"
        for before in op.after:
            if place[before] > place[at]:
                yield f"order: {op.id} runs before {ops[before].id}, which it waits for"
    nodes = [(at, node) for at, node in enumerate(decisions.nodes) if node.kind == "compute"]
    if tuple(node.item for _, node in nodes) != decisions.order:
        yield "nodes: the compute nodes do not run the operators in the plan's order"
        return
    for number, (at, node) in enumerate(nodes):
        name = f"node {at} ({label(decisions.problem, node)})"
        if node.serves != number:
            yield f"{name} serves operator {node.serves} of the order, not itself"
        if number and nodes[number - 1][0] not in node.after:
            other, earlier = nodes[number - 1]
            yield f"{name} does not wait for node {other} ({label(decisions.problem, earlier)}), the operator before it"


def _form(decisions: SwapDecisions) -> Iterator[str]:
    """One address for each arrival, priorities within the order, and a run for each operator."""
    problem = decisions.problem
    if decisions.runs and _names(decisions) != [op.id for op in problem.ops]:
        yield "runs: not the operators of the problem in their order"
    for at, node in enumerate(decisions.nodes):
        wanted = len(problem.ops[node.item].outputs) if node.kind == "compute" else 1 if node.kind == "in" else 0
        if len(node.at) != wanted and (node.at or decisions.allocator != "bytes"):
            yield f"node {at} ({label(problem, node)}) has {len(node.at)} addresses, expected {wanted}"
        if node.serves > len(decisions.order):
            yield f"node {at} ({label(problem, node)}) serves {node.serves}, expected at most {len(decisions.order)}"


def _names(decisions: SwapDecisions) -> list[str]:
    """Names of the runs as treadle.planner.graph.unrolling gives them: the second run of an op is `op#2`."""
    count: Counter[str] = Counter()
    names = []
    for run in decisions.runs:
        count[run.op] += 1
        names.append(run.op if count[run.op] == 1 else f"{run.op}#{count[run.op]}")
    return names


def _layout(decisions: SwapDecisions) -> Iterator[str]:
    """Classes side by side within memory, each large enough for its tensors."""
    problem = decisions.problem
    arena = problem.arena_bytes
    if decisions.allocator != "pool":
        if decisions.pool or decisions.class_of:
            yield f"pool: {len(decisions.pool)} classes, expected none with allocator {decisions.allocator}"
        return
    sizes = problem.object_sizes
    if len(decisions.class_of) != len(sizes):
        yield f"class_of: {len(decisions.class_of)} classes for {len(sizes)} different sizes of tensors"
        return
    for part in decisions.pool:
        for name in ("address", "object_bytes"):
            if (found := getattr(part, name)) % problem.granularity:
                yield f"pool: {name} of {found}, expected a multiple of the allocator's {problem.granularity} bytes"
    for size, number in zip(sizes, decisions.class_of, strict=True):
        if not 1 <= number <= len(decisions.pool):
            yield f"class_of: {number} for tensors of {size} bytes, expected 1 to {len(decisions.pool)}"
        elif decisions.pool[number - 1].object_bytes < size:
            held = decisions.pool[number - 1].object_bytes
            yield f"class_of: tensors of {size} bytes have class {number}, whose objects have {held} bytes"
    spans = sorted((part.address, part.address + part.object_bytes * part.count) for part in decisions.pool)
    for (low, high), (following, _) in pairwise(spans):
        if following < high:
            yield f"pool: the classes at addresses {low} and {following} overlap"
    if spans and max(high for _, high in spans) > arena:
        most = max(high for _, high in spans)
        yield f"pool: ends at {most} bytes ({format_bytes(most)}), more than the {arena} bytes that tensors have"


def _places(decisions: SwapDecisions, walk: Walk) -> Iterator[str]:
    """Every residency lies in an object of its tensor's class, or within memory; final residents too."""
    problem = decisions.problem
    stays = [(_arrival(walk, stay), stay.tensor, stay.at) for stay in walk.residencies]
    if decisions.allocator == "bytes":
        yield from (f"{path} is at {at}, expected 0 with allocator bytes" for path, _, at in stays if at)
        return
    if decisions.allocator == "offset":
        arena = problem.arena_bytes
        for path, tensor, at in stays:
            end = at + problem.tensors[tensor].bytes
            if end > arena:
                yield f"{path} ends at {end}, beyond the {arena} bytes that tensors have"
        initial = {resident.tensor: resident.at for resident in decisions.initial}
        for resident in decisions.final:
            if problem.tensors[resident.tensor].bytes and initial.get(resident.tensor, resident.at) != resident.at:
                name, began = problem.tensors[resident.tensor].id, initial[resident.tensor]
                yield f"final: {name} is at {resident.at}, where the iteration began it was at {began}"
        return
    numbered = zip(problem.object_sizes, decisions.class_of, strict=True)
    part_of = {size: decisions.pool[number - 1] for size, number in numbered}
    for path, tensor, at in stays:
        part = part_of[problem.object_bytes(tensor)]
        index, rest = divmod(at - part.address, part.object_bytes)
        if rest or not 0 <= index < part.count:
            yield f"{path} is at {at}, which is no object of its class of {part.count} x {part.object_bytes} bytes"


def _memory(decisions: SwapDecisions, walk: Walk) -> Iterator[str]:
    """No two tensors are ever in one place."""
    sizes = footprints(decisions)
    if decisions.allocator == "bytes":
        arena = decisions.problem.arena_bytes
        if arena < 0:
            yield f"memory: scratch and reserve alone take {-arena} bytes more than there are"
            return
        stays, taken = crowd(walk.residencies, sizes, walk.order, arena)
        if stays:
            last = max(stays, key=lambda stay: stay.begin)
            yield (
                f"{_arrival(walk, last)} waits for too little: {len(stays)} tensors of {taken} bytes in all may be on "
                f"the device together, {walk.name(stays[0].tensor)} and {walk.name(stays[-1].tensor)} among them, "
                f"more than the {arena} bytes that tensors have"
            )
        return
    for first, second in clashes(walk.residencies, sizes, walk.order):
        leaves = "which stays to the end" if first.leaves is None else f"which leaves after {_node(walk, first.leaves)}"
        yield (
            f"{_arrival(walk, second)} takes the place of {walk.name(first.tensor)} at {second.at}, {leaves}, and "
            "does not wait for that"
        )


def _arrival(walk: Walk, stay: Residency) -> str:
    """`node 5 (in w1)`, `node 7 (conv1): a1`, `initial: w2`."""
    if stay.begin == START:
        return f"initial: {walk.name(stay.tensor)}"
    maker = walk.decisions.nodes[stay.begin].kind == "compute"
    return f"{walk.node(stay.begin)}: {walk.name(stay.tensor)}" if maker else walk.node(stay.begin)


def _node(walk: Walk, place: int) -> str:
    return "the start" if place == START else walk.node(place)


def _host(decisions: SwapDecisions) -> Iterator[str]:
    """Every copied tensor has a place of its own on the host."""
    problem = decisions.problem
    limit = problem.machine.host_bytes
    copied = {node.item for node in decisions.nodes if node.kind in ("in", "out")}
    taken = sum(problem.tensors[tensor].bytes for tensor in copied)
    if limit is not None and taken > limit:
        yield f"host: tensors that are copied take {taken} bytes, the host has {limit}"


def _figures(decisions: SwapDecisions) -> Iterator[str]:
    """The figures of the simulation of the three streams."""
    problem = decisions.problem
    schedule = simulate(*tasks_of(decisions), start_bytes(decisions))
    moved = {
        kind: sum(problem.tensors[node.item].bytes for node in decisions.nodes if node.kind == kind)
        for kind in ("in", "out")
    }
    truth = {
        "time_ns": schedule.makespan,
        "idle_ns": schedule.makespan - problem.ideal_ns,
        "in_bytes": moved["in"],
        "out_bytes": moved["out"],
        "peak_bytes": schedule.peak.get(MEMORY, 0),
    }
    for name, value in truth.items():
        if getattr(decisions, name) != value:
            yield f"{name}: {getattr(decisions, name)}, the plan makes it {value}"
