"""A memory plan as the exact sequence of operator calls, and for every value the call after which it is freed.

The plan says which forward nodes run in which stage. Here each node becomes the trace ops it stands for, in order.
What an op returns besides the output of its node may be a node of kind `intermediate`, which runs no op of its own.
Views are no calls of their own: they are taken again from their base wherever they are read, so only values that own
memory (or that a call returned in one piece with such a value) have a lifetime. A value is freed after its last read
before it is recomputed; that is never later than where the plan drops it, and a read after the drop is an error.

Where the plan chose one of an op's implementations, that is the call. One that overwrites a value ends its life and
takes over its memory. One that inverts a normalisation needs scales away from 0, which only the step itself can see:
what the op's own call reads instead is named as a spare, which the step keeps where it has to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, assert_never

from treadle.planner.documents.trace import Implementation, Op, Trace
from treadle.planner.errors import InputError
from treadle.planner.graph.gradients import finals, handed
from treadle.planner.graph.implementations.normalisation import INVERTING
from treadle.planner.graph.index import Graph
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.program import Drop, EnterStage, RunBackward, RunForward
from treadle.planner.passes.memory.trace_calls import calls_of


@dataclass
class ScheduledCall:
    """One call that makes what `op` makes, or with `op` None the moment at the end of the forward pass when outputs
    are returned. `call` is the op itself or the implementation that was chosen.

    `backward` says whether it belongs to the backward pass, `again` whether it is a recomputation.
    `frees` are the values that die here, `writes` the buffers whose new value is written back right after the call,
    `gives` the leaves whose gradient is handed over right after it. `overwrites` is the value whose memory the first
    result takes over. `spares` are what the op's own call reads besides, where this call needs a scale away from 0.
    `live_bytes` counts every tensor alive during it, with those inside kernels that are written in Python.
    """

    op: Op | None
    call: Op | Implementation | None
    stage: int
    backward: bool = False
    again: bool = False
    frees: list[str] = field(default_factory=list)
    writes: list[tuple[str, str]] = field(default_factory=list)
    gives: list[tuple[str, str]] = field(default_factory=list)
    overwrites: str | None = None
    spares: tuple[str, ...] = ()
    live_bytes: int = 0

    @property
    def made(self) -> tuple[str, ...]:
        return tuple(tensor for tensor in self.call.outputs if tensor is not None) if self.call else ()


@dataclass(frozen=True)
class CallSchedule:
    """`forward` ends with the event that returns the outputs. `saved` are the values handed from forward to backward,
    `kept_buffers` the buffers whose value before the step the backward pass needs. `spared` are the backward events
    with spares, by the place of the normalisation in the forward pass."""

    graph: Graph
    forward: tuple[ScheduledCall, ...]
    backward: tuple[ScheduledCall, ...]
    saved: tuple[str, ...]
    kept_buffers: tuple[str, ...]
    spared: dict[int, tuple[ScheduledCall, ...]]


def schedule(decisions: MemoryDecisions, trace: Trace) -> CallSchedule:
    """Unfold `decisions` over the ops of `trace`. Raises InputError when the plan names ops or implementations that the
    trace lacks, reads a value that it has neither kept nor made, or overwrites one that is still read or held."""
    graph = Graph(trace)
    for op in trace.ops:
        if op.args is None or op.mutates:
            reason = "no recorded arguments" if op.args is None else f"an in-place write to {op.mutates[0]!r}"
            raise InputError(f"op {op.id!r} has {reason}, expected a trace captured from PyTorch", where=trace.name)
    events = list(_events(decisions, graph))
    split = next(index for index, event in enumerate(events) if event.op is None)
    forward, backward = events[: split + 1], events[split + 1 :]
    _place_writes(forward, graph)
    backward = _without_unread(backward, graph)
    _place_gives(backward, graph)
    tangents = set(trace.tangents)
    saved = _place_frees(backward, set(), graph) - tangents
    unmade = _place_frees(forward, saved, graph)
    if unmade:
        raise InputError(f"the plan reads {min(unmade)!r}, which it never makes", where=trace.name)
    spared = _place_spares(forward, backward, graph)
    _count(forward, backward, graph)
    kept = {
        graph.updated[root]
        for event in backward
        for root in (graph.roots(event.call) if event.call else ())
        if graph.updated.get(root) == root and not reads_statistics_only(event.call)
    }
    return CallSchedule(graph, tuple(forward), tuple(backward), tuple(sorted(saved)), tuple(sorted(kept)), spared)


def reads_statistics_only(call: Op | Implementation | None) -> bool:
    """Whether `call` is a batch normalisation: while it updates running statistics it computes nothing else from
    them."""
    return call is not None and "batch_norm" in call.target


def reads(event: ScheduledCall, graph: Graph) -> set[str]:
    """The values that the call of `event` reads: results of other calls, and tangents. In the backward pass a batch
    normalisation is given the buffer itself where the trace has the buffer's new value."""
    if event.call is None:
        roots = {root for tensor in graph.trace.outputs for root in graph.root(tensor)}
    else:
        roots = set(graph.roots(event.call))
        if event.backward and reads_statistics_only(event.call):
            roots -= graph.updated.keys()
    return {root for root in roots if root in graph.producer or graph.tensors[root].role == "tangent"}


def affine(call: Op | Implementation | None) -> tuple[str, ...]:
    """Scale and shift of the normalisation that an inverting call undoes."""
    place = INVERTING[call.target] if call else 0
    return tuple(str(tree["tensor"]) for tree in (call.args or ())[place : place + 2]) if call else ()


def _events(decisions: MemoryDecisions, graph: Graph) -> Iterator[ScheduledCall]:
    problem = decisions.problem
    last = stage = len(problem.bwd) + 1
    returned = False
    live = set(graph.trace.tangents)
    held = {graph.owner[t] for t in (*graph.trace.outputs, *(value for _, value in graph.trace.updates))}
    creator = [i if node.creator is None or node.ops else node.creator for i, node in enumerate(problem.fwd)]
    stored: set[int] = set()
    for instruction in decisions.program:
        match instruction:
            case EnterStage(k):
                stage = k
                if k < last and not returned:
                    returned = True
                    yield ScheduledCall(None, None, last)
            case RunForward(node, _, inplace):
                stored.add(node)
                overwritten = problem.fwd[node].inplace_of
                if inplace and overwritten is not None:
                    stored.discard(overwritten)
            case Drop(node):
                stored.discard(node)
                if all(creator[other] != creator[node] for other in stored):
                    made = {tensor for name in problem.fwd[creator[node]].ops for tensor in graph.ops[name].outputs}
                    live -= {value for value in made if value is not None and graph.owner[value] not in held}
            case RunBackward():
                pass
            case _:
                assert_never(instruction)
        late = stage < last
        for op, call in calls_of(instruction, problem, graph, late=late):
            event = ScheduledCall(op, call, stage, late, late and isinstance(instruction, RunForward))
            missing = reads(event, graph) - live
            if missing:
                raise InputError(
                    f"stage {stage}: op {op.id!r} reads {min(missing)!r}, which the plan neither kept nor recomputed",
                    where=graph.trace.name,
                )
            if isinstance(call, Implementation) and call.overwrites is not None:
                event.overwrites = _overwritten(event, call.overwrites, graph)
                storage = graph.owner[event.overwrites]
                live = {value for value in live if graph.owner[value] != storage}
            if call.target in INVERTING:
                own = reads(ScheduledCall(op, op, stage, late), graph)
                event.spares = tuple(sorted(own - reads(event, graph)))
            live.update(event.made)
            yield event
    if not returned:
        yield ScheduledCall(None, None, last)


def _overwritten(event: ScheduledCall, tensor: str, graph: Graph) -> str:
    """The value whose memory `event` takes over. Raises InputError where that is not the step's own."""
    roots = set(graph.root(tensor))
    trace = graph.trace
    ended = {graph.owner[t] for t in (*finals(trace), *trace.outputs, *(value for _, value in trace.updates))}
    if len(roots) != 1 or not roots <= graph.producer.keys() or graph.owner[tensor] in ended:
        assert event.op is not None
        raise InputError(
            f"op {event.op.id!r} overwrites {tensor!r}, expected a value that the step made and only it holds",
            where=trace.name,
        )
    return roots.pop()


def _place_writes(forward: list[ScheduledCall], graph: Graph) -> None:
    """Write a buffer back as soon as its new value is there and no later op of the forward pass reads the old one."""
    made_at = {value: index for index, event in enumerate(forward) for value in event.made}
    read_at = {value: index for index, event in enumerate(forward) if event.call for value in graph.roots(event.call)}
    for buffer, value in graph.trace.updates:
        place = max([read_at.get(buffer, 0), *(made_at.get(root, 0) for root in graph.root(value))])
        forward[place].writes.append((buffer, value))


def _without_unread(backward: Sequence[ScheduledCall], graph: Graph) -> list[ScheduledCall]:
    """The events without repeated calls whose results no later call reads and no gradient holds."""
    needed = {root for tensor in finals(graph.trace) for root in graph.root(tensor)}
    useful = []
    for event in reversed(backward):
        if not event.again or needed.intersection(event.made):
            needed -= set(event.made)
            needed |= reads(event, graph)
            useful.append(event)
    return useful[::-1]


def _place_gives(backward: list[ScheduledCall], graph: Graph) -> None:
    """Hand a gradient over as soon as no later op reads its memory or its leaf, which a hook of the caller may change
    then."""
    last_use = {
        value: index
        for index, event in enumerate(backward)
        for call in (event.call, event.op if event.spares else None)
        if call
        for value in (*graph.roots(call), *event.made)
    }
    for leaf, gradient in handed(graph.trace):
        places = [last_use[root] for root in graph.root(gradient) if root in last_use]
        if not places:
            raise InputError(f"the plan never computes gradient {gradient!r}", where=graph.trace.name)
        backward[max(*places, last_use.get(leaf, 0))].gives.append((leaf, gradient))


def _place_frees(events: Sequence[ScheduledCall], needed: set[str], graph: Graph) -> set[str]:
    """Walk `events` against time from where `needed` is read later: mark where each value dies, and return what has to
    be there at the start."""
    needed = set(needed)
    for event in reversed(events):
        made = set(event.made)
        handed = {root for _, tensor in (*event.writes, *event.gives) for root in graph.root(tensor)}
        before, after = reads(event, graph), {root for root in handed if root in graph.producer}
        event.frees = sorted((before | after | made) - needed)
        needed |= after
        needed -= made
        needed |= before
    return needed


def _place_spares(
    forward: Sequence[ScheduledCall], backward: Iterable[ScheduledCall], graph: Graph
) -> dict[int, tuple[ScheduledCall, ...]]:
    """By place in the forward pass that sees them: the events with spares, and scale and shift, which decide."""
    found: dict[int, tuple[ScheduledCall, ...]] = {}
    for event in backward:
        if not event.spares or event.op is None:
            continue
        parts = affine(event.call)
        wanted = {*event.spares, *(root for part in parts for root in graph.root(part) if root in graph.producer)}
        place = next((i for i, other in enumerate(forward) if wanted <= reads(other, graph).union(other.made)), None)
        if place is None or forward[place].overwrites in event.spares:
            raise InputError(
                f"op {event.op.id!r} inverts a normalisation of {event.spares[0]!r} by {parts[0]!r}, "
                "which no op of the forward pass reads",
                where=graph.trace.name,
            )
        found[place] = (*found.get(place, ()), event)
    return found


def _count(forward: Iterable[ScheduledCall], backward: Iterable[ScheduledCall], graph: Graph) -> None:
    """Set `live_bytes` of every event: parameters, buffers, inputs, outputs and tangents held by the caller, gradients
    handed over so far, every value that is alive, and the workspace of kernels written in Python."""
    places: dict[str, _Place] = {}
    live: dict[str, _Place] = {}
    users: Counter[_Place] = Counter()
    total = 0

    def place(tensor: str) -> _Place:
        return places.setdefault(graph.owner[tensor], _Place(graph.owner[tensor]))

    def change(used: _Place, by: int) -> int:
        """The bytes by which one user more or less of a storage changes the total."""
        before = users[used]
        users[used] += by
        return graph.storage_bytes(used.owner) * ((before + by > 0) - (before > 0))

    serial = 0
    held = [t.id for t in graph.trace.tensors if t.role in ("parameter", "buffer", "input")]
    for events, entering in ((forward, held), (backward, graph.trace.tangents)):
        total += sum(change(place(value), 1) for value in entering)
        for event in events:
            serial += 1
            overwritten = place(event.overwrites) if event.overwrites is not None else None
            places.update((value, _Place(value, serial)) for value in event.made if graph.owner[value] == value)
            if overwritten is not None:
                places[graph.owner[event.made[0]]] = overwritten
            for value in event.made:
                total += change(place(value), 1)
                total += change(live[value], -1) if value in live else 0
                live[value] = place(value)
            inside = event.call.workspace_bytes if event.call and event.call.target.startswith("treadle.") else None
            event.live_bytes = total + (inside or 0)
            kept = [gradient for _, gradient in event.gives] if event.op else graph.trace.outputs
            total += sum(change(place(value), 1) for value in kept)
            total += sum(change(live.pop(value), -1) for value in event.frees if value in live)


class _Place(NamedTuple):
    """A storage as large as that of tensor `owner`, made by call number `serial`."""

    owner: str
    serial: int = 0
