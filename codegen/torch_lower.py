"""A memory plan as the exact sequence of operator calls, and for every value the call after which it is freed.

The plan says which forward nodes run in which stage. Here each node becomes the trace ops it stands for, in order.
What an op returns besides the output of its node may be a node of kind `intermediate`, which runs no op of its own.
Views are no calls of their own: they are made again from their base wherever they are read, so only values that own
memory (or that a call returned in one piece with such a value) have a lifetime. A value is freed after its last read
before it is made again; that is never later than where the plan drops it, and a read after the drop is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from planner.errors import InputError
from planner.liveness import owners
from planner.memory.decisions import MemoryDecisions
from planner.memory.program import Drop, RunBackward, RunForward, Stage
from planner.trace import Op, Tensor, Trace


@dataclass(frozen=True)
class Graph:
    """A trace, indexed."""

    trace: Trace

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        return {tensor.id: tensor for tensor in self.trace.tensors}

    @cached_property
    def ops(self) -> dict[str, Op]:
        return {op.id: op for op in self.trace.ops}

    @cached_property
    def producer(self) -> dict[str, Op]:
        return {tensor: op for op in self.trace.ops for tensor in op.outputs if tensor is not None}

    @cached_property
    def updated(self) -> dict[str, str]:
        """From an updated buffer, and from the tensor that holds its new value, to the buffer."""
        return {tensor: pair[0] for pair in self.trace.updates for tensor in pair}

    def is_view(self, op: Op) -> bool:
        """Whether every result shares memory with an argument, so that making it again costs nothing."""
        made = [self.tensors[tensor].alias_of for tensor in op.outputs if tensor is not None]
        return bool(made) and all(alias in op.inputs for alias in made)

    def roots(self, op: Op) -> Iterator[str]:
        """The values that calling `op` reads once its views are unfolded: placeholders and results of calls."""
        for tensor in op.inputs:
            yield from self.root(tensor)

    def root(self, tensor: str) -> Iterator[str]:
        op = self.producer.get(tensor)
        if op is not None and self.is_view(op):
            yield from self.roots(op)
        else:
            yield tensor

    @cached_property
    def owner(self) -> dict[str, str]:
        """For each tensor the one whose storage it lives in."""
        return owners(self.trace)

    def storage_bytes(self, owner: str) -> int:
        tensor = self.tensors[owner]
        return tensor.storage_bytes or tensor.bytes or 0


@dataclass
class Event:
    """One call of `op`, or with `op` None the moment at the end of the forward pass when outputs are returned.

    `backward` says whether it belongs to the backward pass, `again` whether it is a recomputation.
    `frees` are the values that die here, `writes` the buffers whose new value is written back right after the call,
    `gives` the leaves whose gradient is handed over right after it. `live_bytes` counts everything alive during it.
    """

    op: Op | None
    stage: int
    backward: bool = False
    again: bool = False
    frees: list[str] = field(default_factory=list)
    writes: list[tuple[str, str]] = field(default_factory=list)
    gives: list[tuple[str, str]] = field(default_factory=list)
    live_bytes: int = 0

    @property
    def made(self) -> tuple[str, ...]:
        return tuple(tensor for tensor in self.op.outputs if tensor is not None) if self.op else ()


@dataclass(frozen=True)
class Schedule:
    """`forward` ends with the event that returns the outputs. `saved` are the values handed from forward to backward,
    `kept_buffers` the buffers whose value before the step the backward pass needs."""

    graph: Graph
    forward: tuple[Event, ...]
    backward: tuple[Event, ...]
    saved: tuple[str, ...]
    kept_buffers: tuple[str, ...]


def schedule(decisions: MemoryDecisions, trace: Trace) -> Schedule:
    """Unfold `decisions` over the ops of `trace`.

    Raises InputError when the plan names ops that the trace lacks, or reads a value that it has neither kept nor made.
    """
    graph = Graph(trace)
    for op in trace.ops:
        if op.args is None or op.mutates:
            reason = "no recorded arguments" if op.args is None else f"an in-place write to {op.mutates[0]!r}"
            raise InputError(f"op {op.id!r} has {reason}, expected a trace captured from PyTorch", where=trace.name)
    events = list(_events(decisions, graph))
    split = next(index for index, event in enumerate(events) if event.op is None)
    forward, backward = events[: split + 1], events[split + 1 :]
    _place_writes(forward, graph)
    _place_gives(backward, graph)
    tangents = set(trace.tangents)
    backward, needed = _place_frees(backward, set(), graph)
    saved = needed - tangents
    forward, unmade = _place_frees(forward, saved, graph)
    if unmade:
        raise InputError(f"the plan reads {min(unmade)!r}, which it never makes", where=trace.name)
    _count(forward, backward, graph)
    kept = {
        graph.updated[root]
        for event in backward
        for root in (graph.roots(event.op) if event.op else ())
        if graph.updated.get(root) == root and not reads_statistics_only(event.op)
    }
    return Schedule(graph, tuple(forward), tuple(backward), tuple(sorted(saved)), tuple(sorted(kept)))


def reads_statistics_only(op: Op | None) -> bool:
    """Whether `op` is a batch normalisation: while it updates running statistics it computes nothing else from them."""
    return op is not None and "batch_norm" in op.target


def reads(event: Event, graph: Graph) -> set[str]:
    """The values that the call of `event` reads: results of other calls, and tangents. In the backward pass a batch
    normalisation is given the buffer itself where the trace has the buffer's new value."""
    if event.op is None:
        roots = {root for tensor in graph.trace.outputs for root in graph.root(tensor)}
    else:
        roots = set(graph.roots(event.op))
        if event.backward and reads_statistics_only(event.op):
            roots -= graph.updated.keys()
    return {root for root in roots if root in graph.producer or graph.tensors[root].role == "tangent"}


def _events(decisions: MemoryDecisions, graph: Graph) -> Iterator[Event]:
    problem = decisions.problem
    last = stage = len(problem.bwd) + 1
    returned = False
    live = set(graph.trace.tangents)
    held = {graph.owner[t] for t in (*graph.trace.outputs, *(value for _, value in graph.trace.updates))}
    creator = [i if node.creator is None else node.creator for i, node in enumerate(problem.fwd)]
    stored: set[int] = set()
    for instruction in decisions.program:
        names: tuple[str, ...] = ()
        match instruction:
            case Stage(k):
                stage = k
                if k < last and not returned:
                    returned = True
                    yield Event(None, last)
            case RunForward(node):
                names = problem.fwd[node].ops
                stored.add(node)
            case RunBackward(node):
                names = problem.bwd[node].ops
            case Drop(node):
                stored.discard(node)
                if all(creator[other] != creator[node] for other in stored):
                    made = _values(problem.fwd[creator[node]].ops, graph)
                    live -= {value for value in made if graph.owner[value] not in held}
        for name in names:
            if name not in graph.ops:
                raise InputError(f"the plan runs op {name!r}, which the trace lacks", where=graph.trace.name)
            if graph.is_view(graph.ops[name]):
                continue
            late = stage < last
            event = Event(graph.ops[name], stage, late, again=late and isinstance(instruction, RunForward))
            missing = reads(event, graph) - live
            if missing:
                raise InputError(
                    f"stage {stage}: op {name!r} reads {min(missing)!r}, which the plan neither kept nor made again",
                    where=graph.trace.name,
                )
            live.update(event.made)
            yield event
    if not returned:
        yield Event(None, last)


def _values(names: Iterable[str], graph: Graph) -> set[str]:
    return {tensor for name in names for tensor in graph.ops[name].outputs if tensor is not None}


def _place_writes(forward: list[Event], graph: Graph) -> None:
    """Write a buffer back as soon as its new value is there and no later op of the forward pass reads the old one."""
    for buffer, value in graph.trace.updates:
        roots = set(graph.root(value))
        place = 0
        for index, event in enumerate(forward):
            if event.op and (roots.intersection(event.made) or buffer in graph.roots(event.op)):
                place = index
        forward[place].writes.append((buffer, value))


def _place_gives(backward: list[Event], graph: Graph) -> None:
    """Hand a gradient over as soon as it is there and no later op reads its memory."""
    rank = {tensor: index for index, tensor in enumerate(graph.trace.gradient_order)}
    gradients = [(tensor.gradient_of, tensor.id) for tensor in graph.trace.tensors if tensor.gradient_of is not None]
    last_use = {
        value: index
        for index, event in enumerate(backward)
        if event.op
        for value in (*graph.roots(event.op), *event.made)
    }
    for leaf, gradient in sorted(gradients, key=lambda pair: (rank.get(pair[1], len(rank)), pair)):
        places = [last_use[root] for root in graph.root(gradient) if root in last_use]
        if not places:
            raise InputError(f"the plan never computes gradient {gradient!r}", where=graph.trace.name)
        backward[max(places)].gives.append((leaf, gradient))


def _place_frees(events: list[Event], needed: set[str], graph: Graph) -> tuple[list[Event], set[str]]:
    """Walk `events` against time from where `needed` is read later: mark where each value dies, leave out repeated
    calls that nobody reads, and return the rest with what has to be there at the start."""
    useful = []
    for event in reversed(events):
        made = set(event.made)
        if event.again and not needed.intersection(made):
            continue
        handed = {root for _, tensor in (*event.writes, *event.gives) for root in graph.root(tensor)}
        before, after = reads(event, graph), {root for root in handed if root in graph.producer}
        event.frees = sorted((before | after | made) - needed)
        needed = ((needed | after) - made) | before
        useful.append(event)
    return useful[::-1], needed


def _count(forward: Iterable[Event], backward: Iterable[Event], graph: Graph) -> None:
    """Set `live_bytes` of every event: parameters, buffers, inputs, outputs held by the caller, gradients handed over
    so far, and every value that is alive."""
    lasting = {graph.owner[t.id] for t in graph.trace.tensors if t.role in ("parameter", "buffer", "input")}
    live: dict[str, str] = {}
    for events, entering in ((forward, ()), (backward, graph.trace.tangents)):
        live.update((value, graph.owner[value]) for value in entering)
        for event in events:
            live.update((value, graph.owner[value]) for value in event.made)
            event.live_bytes = sum(graph.storage_bytes(owner) for owner in lasting.union(live.values()))
            lasting.update(graph.owner[gradient] for _, gradient in event.gives)
            if event.op is None:
                lasting.update(graph.owner[output] for output in graph.trace.outputs)
            for value in event.frees:
                live.pop(value, None)
