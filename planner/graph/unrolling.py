"""A trace in which ops run as often as a plan says, as another trace: recomputation in plain terms.

The n-th run of an op is the op `id#n` and makes tensors `id#n`; a first run keeps the ids. A run reads the latest
instance of each tensor, all of which hold equal values. Views take no part in a plan: each is made from the instance
of its base right before it is read. What the step hands to its caller are first instances. An implementation that
overwrites an input ends the life of everything in that storage; its first result is an alias of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from treadle.planner.documents.trace import Call, Implementation, Op, OpRun, Trace
from treadle.planner.errors import InputError
from treadle.planner.graph.gradients import finals
from treadle.planner.graph.implementations.dropout import STATE
from treadle.planner.graph.index import Graph

OWN = "default"
"""The name of an op's own call among its implementations."""
INPLACE = "inplace"
"""The name of the own call's form that writes its result, of the same bits, where an argument lies."""


def unrolled(trace: Trace, runs: Sequence[OpRun]) -> Trace:
    """The trace of `runs`, in their order, a valid document whose values are those of `trace`.

    Runs of views count for nothing. Optional ops are in it where a run names them, no op has implementations any more.
    Raises InputError where a run names an op or an implementation that the trace lacks, reads what is not there (not
    made yet, overwritten, or written to since), draws random numbers a second time, where what writes in place does
    not run, and where something is never made that the step hands to its caller.
    """
    unrolling = _Unrolling(trace)
    for run in runs:
        op = unrolling.graph.ops.get(run.op)
        if op is None:
            raise InputError(f"the plan runs op {run.op!r}, which the trace lacks", where=trace.name)
        if not unrolling.graph.is_view(op):
            unrolling.run(op, call_named(op, run.implementation, trace.name))
    return unrolling.finished()


def call_named(op: Op, implementation: str, where: str) -> Call:
    """The op itself or one of its implementations by name. Raises InputError where it has none of the name."""
    if implementation == OWN:
        return op
    for variant in op.implementations:
        if variant.name == implementation:
            return variant
    raise InputError(f"the plan runs op {op.id!r} by {implementation!r}, which the trace lacks", where=where)


def plain_runs(trace: Trace) -> tuple[OpRun, ...]:
    """Every op once by its own call; views and optional ops are left out."""
    graph = Graph(trace)
    return tuple(OpRun(op=op.id) for op in trace.ops if op.intermediate_of is None and not graph.is_view(op))


def inplace_runs(trace: Trace) -> tuple[OpRun, ...]:
    """Every op once, in place where that loses nothing: no later op reads what it overwrites, through any view.

    What the in-place form may overwrite at all, and which of two summands, is its implementation's matter.
    """
    graph = Graph(trace)
    last: dict[str, int] = {}
    for place, op in enumerate(trace.ops):
        if op.intermediate_of is None and not graph.is_view(op):
            last.update((graph.owner[tensor], place) for tensor in (*op.inputs, *op.mutates))
    places = {op.id: place for place, op in enumerate(trace.ops)}
    return tuple(
        replace(run, implementation=INPLACE)
        if any(
            variant.name == INPLACE
            and variant.overwrites is not None
            and last[graph.owner[variant.overwrites]] == places[run.op]
            for variant in graph.ops[run.op].implementations
        )
        else run
        for run in plain_runs(trace)
    )


def copies_alone(runs: Sequence[OpRun]) -> bool:
    """Whether `runs` are every op once by its own call or that in place, so that a plan changes no work."""
    return len({run.op for run in runs}) == len(runs) and all(run.implementation in (OWN, INPLACE) for run in runs)


def as_run(trace: Trace, runs: Sequence[OpRun]) -> Trace:
    """The trace that a plan with `runs` covers: `trace` itself without runs."""
    return unrolled(trace, runs) if runs else trace


def without_useless(trace: Trace, runs: Sequence[OpRun]) -> tuple[OpRun, ...]:
    """`runs` without repeated runs whose results no op reads."""
    graph = Graph(trace)
    seen: set[str] = set()
    first = [not (run.op in seen or seen.add(run.op)) for run in runs]  # type: ignore[func-returns-value]
    needed: set[str] = set()
    kept: list[OpRun] = []
    for run, is_first in zip(reversed(runs), reversed(first), strict=True):
        call = call_named(graph.ops[run.op], run.implementation, trace.name)
        if is_first or not needed.isdisjoint(call.outputs):
            kept.append(run)
            needed.difference_update(tensor for tensor in call.outputs if tensor is not None)
            needed.update(graph.roots(call))
    return tuple(reversed(kept))


class _Unrolling:
    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.graph = graph = Graph(trace)
        held = [tensor for tensor in trace.tensors if tensor.id not in graph.producer]
        self.tensors = held
        self.ops: list[Op] = []
        self.latest = {tensor.id: tensor.id for tensor in held}
        """The instance of each tensor that is read."""
        self.base = {tensor.id: graph.owner[tensor.id] for tensor in held}
        """For each instance the first one in the same memory."""
        self.members: dict[str, list[str]] = {}
        for tensor in held:
            self.members.setdefault(self.base[tensor.id], []).append(tensor.id)
        self.overwritten: set[str] = set()
        self.writes: dict[str, int] = {}
        """How often each base was written to in place."""
        self.counts: dict[str, int] = {}
        self.viewed: dict[str, tuple[str, ...]] = {}
        """What the latest run of a view op read."""
        self.places = {op.id: place for place, op in enumerate(trace.ops)}
        self.write_places: dict[str, list[int]] = {}
        for place, op in enumerate(trace.ops):
            for storage in dict.fromkeys(graph.owner[tensor] for tensor in op.mutates):
                self.write_places.setdefault(storage, []).append(place)
        self.handed = _handed(trace)
        self.handed_views: dict[str, list[str]] = {}
        for name in self.handed:
            for root in graph.root(name):
                if root != name:
                    self.handed_views.setdefault(root, []).append(name)

    def run(self, op: Op, call: Call) -> None:
        again = op.id in self.counts
        if again and draws(op, call):
            raise InputError(f"the plan runs op {op.id!r} again, which draws random numbers", where=self.trace.name)
        self.emit(op, call, {tensor: self.read(tensor, op) for tensor in (*call.inputs, *op.mutates)})
        if not again:
            for view in [view for tensor in call.outputs for view in self.handed_views.get(tensor or "", ())]:
                if all(root in self.latest for root in self.graph.root(view)):
                    self.read(view, op)

    def read(self, tensor: str, reader: Op) -> str:
        """The instance of `tensor` that `reader` reads, with a view added if the latest base has none."""
        op = self.graph.producer.get(tensor)
        if op is not None and self.graph.is_view(op):
            sources = {source: self.read(source, reader) for source in op.inputs}
            if self.viewed.get(op.id) != tuple(sources.values()):
                self.emit(op, op, sources)
                self.viewed[op.id] = tuple(sources.values())
            return self.latest[tensor]
        instance = self.latest.get(tensor)
        if instance is None:
            raise self.unreadable(reader, tensor, "nothing has made")
        if instance in self.overwritten:
            raise self.unreadable(reader, tensor, "another call has overwritten")
        found = self.writes.get(self.base[instance], 0)
        wanted = bisect_left(self.write_places.get(self.graph.owner[tensor], ()), self.places[reader.id])
        if found != wanted:
            times = f"written to {found} times by then, in the trace {wanted} times"
            raise self.unreadable(reader, tensor, f"was {times}")
        return instance

    def unreadable(self, reader: Op, tensor: str, why: str) -> InputError:
        return InputError(f"the plan runs op {reader.id!r}, which reads {tensor!r}, which {why}", where=self.trace.name)

    def emit(self, op: Op, call: Call, sources: dict[str, str]) -> None:
        """One run: the op of its own, and the instances that it makes."""
        count = self.counts[op.id] = self.counts.get(op.id, 0) + 1
        suffix = f"#{count}" if count > 1 else ""
        mutates = tuple(dict.fromkeys(sources[tensor] for tensor in op.mutates))
        for instance in mutates:
            self.writes[self.base[instance]] = self.writes.get(self.base[instance], 0) + 1
        taken = call.overwrites if isinstance(call, Implementation) else None
        if taken is not None:
            mutates = (sources[taken],)
            self.overwritten.update(self.members[self.base[sources[taken]]])
        made = [tensor for tensor in call.outputs if tensor is not None]
        for place, tensor in enumerate(made):
            old = self.graph.tensors[tensor]
            instance = tensor + suffix
            if suffix and instance in self.graph.tensors:
                raise InputError(f"found a tensor {instance!r}, expected no {suffix!r} in ids", where=self.trace.name)
            alias = sources.get(old.alias_of) or self.latest[old.alias_of] if old.alias_of is not None else None
            self.base[instance] = self.base[alias] if alias is not None else instance
            if taken is not None and not place:
                alias = sources[taken]
            self.members.setdefault(self.base[instance], []).append(instance)
            self.latest[tensor] = instance
            self.tensors.append(
                replace(
                    old,
                    id=instance,
                    alias_of=alias,
                    role="activation" if suffix and old.role == "output" else old.role,
                    gradient_of=None if suffix else old.gradient_of,
                )
            )
        renamed = {tensor: self.latest[tensor] for tensor in made}
        self.ops.append(
            replace(
                op,
                id=op.id + suffix,
                target=call.target,
                inputs=tuple(dict.fromkeys(sources[tensor] for tensor in call.inputs)),
                outputs=tuple(None if tensor is None else renamed[tensor] for tensor in call.outputs),
                mutates=mutates,
                after=tuple(_latest_run(name, self.counts) for name in op.after if name in self.counts),
                args=None if call.args is None else tuple(_renamed(tree, sources) for tree in call.args),
                kwargs=None
                if call.kwargs is None
                else {key: _renamed(tree, sources) for key, tree in call.kwargs.items()},
                random=draws(op, call),
                flops=call.flops,
                bytes_moved=call.bytes_moved,
                workspace_bytes=call.workspace_bytes,
                returns_new=call.returns_new,
                time_ns=call.time_ns,
                family=call.family,
                implementations=(),
                intermediate_of=None,
            )
        )

    def finished(self) -> Trace:
        """The trace of all runs so far. Raises InputError where something is missing."""
        for op in self.trace.ops:
            if op.mutates and op.id not in self.counts:
                raise InputError(f"the plan never runs op {op.id!r}, which writes in place", where=self.trace.name)
        instances = {tensor.id for tensor in self.tensors}
        for tensor in self.handed:
            if tensor not in instances:
                raise InputError(f"the plan never makes {tensor!r}, which the step hands over", where=self.trace.name)
            if tensor in self.overwritten:
                raise InputError(f"the plan overwrites {tensor!r}, which the step hands over", where=self.trace.name)
        return replace(self.trace, tensors=tuple(self.tensors), ops=tuple(self.ops))


def draws(op: Op, call: Call) -> bool:
    """Whether the call reads or notes the state of the random number generator of the step."""
    return op.random or call.target == STATE


def _handed(trace: Trace) -> tuple[str, ...]:
    """What the step makes for its caller."""
    return tuple(
        dict.fromkeys((*trace.outputs, *(value for _, value in trace.updates), *finals(trace), *trace.gradient_order))
    )


def _latest_run(name: str, counts: Mapping[str, int]) -> str:
    return f"{name}#{counts[name]}" if counts[name] > 1 else name


def _renamed(tree: Any, sources: Mapping[str, str]) -> Any:
    """An argument tree with the instances that are read in the place of tensors."""
    match tree:
        case {"tensor": str(name)}:
            return {"tensor": sources[name]}
        case list() | tuple():
            return [_renamed(item, sources) for item in tree]
        case _:
            return tree
