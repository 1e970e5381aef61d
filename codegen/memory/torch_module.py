"""PyTorch text of a memory plan: `step.py`, which runs one training step by explicit operator calls.

Constants say what the step expects and returns; tensors are described as (dtype, shape) or (dtype, shape, stride).
`forward(parameters, buffers, inputs)` runs stage K+1 and returns the outputs and a dict of what it saved.
`returned(outputs)` puts the outputs into the tuples, lists and dicts in which the captured step returned them.
`backward(saved, parameters, buffers, inputs, tangents, gradients)` runs stages K to 1. It is a generator: each time a
gradient is ready it puts it into `gradients` and yields its name, so that the caller can take it out at once.

No value lives in a local name longer than the plan says: views are made inside the call that reads them, and every
other name is deleted right after its last use.

A backward call that inverts a normalisation has a spare: `None`, or what the op's own call reads where the scale is too
near 0 to divide by.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from treadle.codegen.memory.handing_over import handed_together
from treadle.codegen.memory.lower import CallSchedule, ScheduledCall, affine, reads_statistics_only, schedule
from treadle.codegen.python_text import (
    WIDTH,
    PythonTree,
    calling,
    constants,
    labelled,
    layout,
    literal,
    python_names,
    returning,
    word,
)
from treadle.codegen.templates import quote, template
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.documents.trace import Implementation, Op, Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.memory.decisions import MemoryDecisions

FILE_NAME = "step.py"
NO_SPARES: Mapping[str, str] = MappingProxyType({})


def generate(plan: Plan[MemoryDecisions], trace: Trace) -> dict[str, str]:
    """The module of a memory plan over the trace it was made from, as {relative path: text}. Raises InputError when
    plan and trace do not belong together."""
    return {FILE_NAME: step_text(plan.decisions, trace)}


def step_text(decisions: MemoryDecisions, trace: Trace) -> str:
    """The module of `decisions`. Raises InputError when they do not belong to the trace."""
    writer = _Writer(schedule(decisions, trace))
    forward, backward = list(writer.forward()), list(writer.backward())
    return template("torch/step.py.j2").render(
        name=trace.name,
        budget=format_bytes(decisions.problem.budget_bytes),
        peak=format_bytes(writer.peak_bytes),
        planned=format_bytes(decisions.exact_peak_bytes),
        calls=len(writer.schedule.forward) - 1,
        backward_calls=sum(not event.again for event in writer.schedule.backward),
        repeated=sum(event.again for event in writer.schedule.backward),
        stages=len(decisions.problem.bwd),
        imports=list(writer.imports()),
        autocast=trace.autocast is not None,
        handed=any(len(group) > 1 for group in writer.together),
        called=trace.called is not None,
        partial=bool(writer.partial),
        scales=bool(writer.scales),
        reread=bool(writer.reread),
        untrained=bool(trace.untrained),
        constants=list(writer.constants()),
        returned=list(returning(trace)),
        forward=forward,
        backward=backward,
    )


def leaf_name(trace: Trace, tensor: str) -> str:
    """How the module calls a parameter, buffer or input: its qualified name, or `input N`."""
    if tensor in trace.inputs:
        return f"input {trace.inputs.index(tensor)}"
    return next(t.name or t.id for t in trace.tensors if t.id == tensor)


@dataclass(frozen=True)
class _Writer:
    schedule: CallSchedule

    @cached_property
    def states(self) -> dict[str, ScheduledCall]:
        """Random ops that run again, and the last backward event that does so."""
        return {event.op.id: event for event in self.schedule.backward if event.op and event.again and event.op.random}

    def imports(self) -> Iterator[str]:
        events = self._events
        if any(call.target.startswith("treadle.") for event in events for call in (event.call, event.op) if call):
            yield "from treadle import kernels"
        by_strides = any(op.target in _BY_STRIDES for op in self.schedule.graph.trace.ops)
        candidates = (
            ("inverting", self.schedule.spared),
            ("objects", self.has_objects),
            ("rng", self.states),
            ("strides", by_strides),
        )
        helpers = [name for name, used in candidates if used]
        if helpers:
            yield "from treadle.runtime import " + ", ".join(helpers)

    @property
    def has_objects(self) -> bool:
        return any("objects.made(" in line for line in returning(self.schedule.graph.trace))

    @property
    def peak_bytes(self) -> int:
        return max(event.live_bytes for event in self._events)

    @cached_property
    def names(self) -> dict[str, str]:
        """Python name of every tensor that a call makes."""
        return python_names(self.schedule.graph.producer, {*_RESERVED, *self.external.values()})

    @cached_property
    def external(self) -> dict[str, str]:
        """Expression of every placeholder."""
        trace = self.schedule.graph.trace
        found = {tensor: f"inputs[{index}]" for index, tensor in enumerate(trace.inputs)}
        found |= {tensor: f"tangent_{index}" for index, tensor in enumerate(trace.tangents)}
        for tensor in trace.tensors:
            if tensor.role in ("parameter", "buffer") and tensor.id not in self.schedule.graph.producer:
                found[tensor.id] = f"{tensor.role}s[{quote(tensor.name or tensor.id)}]"
        return found

    def constants(self) -> Iterator[str]:
        trace, tensors = self.schedule.graph.trace, self.schedule.graph.tensors
        for heading, role in (("PARAMETERS", "parameter"), ("BUFFERS", "buffer")):
            yield from constants(
                **{heading: {t.name or t.id: [t.dtype, t.shape] for t in trace.tensors if t.role == role}}
            )
        inputs = [[tensors[i].dtype, tensors[i].shape, tensors[i].stride] for i in trace.inputs]
        gives = [leaf for group in self.together for leaf in group]
        gradients = [leaf_name(trace, leaf) for leaf in gives]
        yield from calling(trace)
        yield from constants(INPUTS=inputs, TANGENTS=self._differentiable_outputs(), GRADIENTS=gradients)
        if len(self.together) < len(gives):
            yield from constants(HANDED=[leaf_name(trace, group[-1]) for group in self.together])
        read = {tensor for op in trace.ops for tensor in op.inputs if tensors[tensor].role in ("parameter", "input")}
        frozen = sorted(leaf_name(trace, leaf) for leaf in read.difference(gives, trace.detached))
        yield from constants(FROZEN=frozen, EVALUATING=trace.evaluating)
        optional: dict[str, Any] = {
            "AUTOCAST": trace.autocast,
            "PARTIAL": self.partial,
            "SCALES": self.scales,
            "REREAD": self.reread,
            "UNTRAINED": list(trace.untrained),
        }
        yield from constants(**{name: value for name, value in optional.items() if value})

    @cached_property
    def together(self) -> list[list[str]]:
        """The leaves whose gradients are handed over together, in order."""
        return handed_together(self.schedule.backward, self.schedule.graph)

    @cached_property
    def partial(self) -> dict[str, list[int]]:
        """Gradients that come from some of the outputs only, and the places of those."""
        trace = self.schedule.graph.trace
        every = self._differentiable_outputs()
        sources = {tangent: frozenset((place,)) for tangent, place in zip(trace.tangents, every, strict=True)}
        for op in trace.ops:
            read = frozenset[int]().union(*(sources.get(tensor, ()) for tensor in op.inputs))
            sources.update((tensor, read) for tensor in op.outputs if tensor is not None and read)
        gives = [give for event in self.schedule.backward for give in event.gives]
        found = {leaf_name(trace, leaf): sorted(sources.get(gradient, every)) for leaf, gradient in gives}
        return {leaf: places for leaf, places in found.items() if len(places) < len(every)}

    @cached_property
    def scales(self) -> list[list[str]]:
        """Scale and shift of each normalisation that the backward pass inverts, where both are parameters."""
        graph = self.schedule.graph
        pairs = [affine(event.call) for event in self.schedule.backward if event.spares]
        plain = [pair for pair in pairs if all(graph.tensors[part].role == "parameter" for part in pair)]
        return sorted([leaf_name(graph.trace, part) for part in pair] for pair in set(plain))

    @cached_property
    def reread(self) -> list[str]:
        """Buffers that the step does not write and whose values the backward pass reads."""
        graph = self.schedule.graph
        calls = [call for event in self.schedule.backward for call in (event.call, event.op if event.spares else None)]
        roots = {root for call in calls if call is not None for root in graph.roots(call)}.difference(graph.updated)
        return sorted(leaf_name(graph.trace, root) for root in roots if graph.tensors[root].role == "buffer")

    def _differentiable_outputs(self) -> tuple[int, ...]:
        """Which output each tangent belongs to."""
        trace = self.schedule.graph.trace
        if trace.tangent_of or not trace.tangents:
            return trace.tangent_of
        if len(trace.tangents) != len(trace.outputs):
            raise InputError(
                f"found nothing, expected which output each tangent belongs to: the step has "
                f"{_count(len(trace.tangents), 'tangent')} and {_count(len(trace.outputs), 'output')}; capture again",
                where=trace.name,
                path="$.tangent_of",
            )
        return tuple(range(len(trace.outputs)))

    @property
    def _events(self) -> tuple[ScheduledCall, ...]:
        return (*self.schedule.forward, *self.schedule.backward)

    def forward(self) -> Iterator[str]:
        *events, end = self.schedule.forward
        peak = self._peak(self.schedule.forward)
        yield f"    # stage {end.stage}: {_count(len(events), 'call')}; at most {peak} live"
        if self.states or _names_device(events):
            yield _DEVICE
        yield "    saved = {}"
        for buffer in self.schedule.kept_buffers:
            yield f"    saved[{quote('before ' + buffer)}] = {self.external[buffer]}.clone()"
        for place, event in enumerate(events):
            assert event.op is not None
            if event.op.id in self.states:
                yield f"    saved[{quote('generator ' + event.op.id)}] = rng.state(device)"
            yield from self._event(event, self.schedule.spared.get(place, ()))
        outputs = tuple(self._read(tensor, end) for tensor in self.schedule.graph.trace.outputs)
        shared = {self.schedule.graph.owner[tensor] for tensor in self.schedule.graph.trace.outputs}
        for value in self.schedule.saved:
            alias = ".detach()" if self.schedule.graph.owner[value] in shared else ""
            yield f"    saved[{quote(self.names[value])}] = {self.names[value]}{alias}"
        yield from layout("return ", PythonTree("[", outputs, "], saved"), 4)

    def backward(self) -> Iterator[str]:
        if self.states or _names_device(self.schedule.backward):
            yield _DEVICE
        for tensor in self.schedule.graph.trace.tangents:
            yield f"    {self.external[tensor]} = tangents.pop(0)"
        for value in self.schedule.saved:
            yield f"    {self.names[value]} = saved.pop({quote(self.names[value])})"
        stages: dict[int, list[ScheduledCall]] = {}
        for event in self.schedule.backward:
            stages.setdefault(event.stage, []).append(event)
        for stage, events in stages.items():
            again = sum(event.again for event in events)
            note = f", {again} recomputed" if again else ""
            yield ""
            peak = self._peak(events)
            yield f"    # stage {stage}: {_count(len(events), 'call')}{note}; at most {peak} live"
            for event in events:
                yield from self._event(event)

    def _event(self, event: ScheduledCall, spared: Iterable[ScheduledCall] = ()) -> Iterator[str]:
        op = event.op
        assert op is not None
        assert event.call is not None
        indent = 4
        if event.again and op.random:
            key = quote("generator " + op.id)
            state = f"saved.pop({key})" if self.states[op.id] is event else f"saved[{key}]"
            yield f"    with rng.replayed({state}, device):"
            indent = 8
        if event.spares:
            yield f"    spare = saved.pop({quote('spare ' + op.id)})"
            yield "    if spare is None:"
            yield from self._assignment(event.call, event, 8)
            yield "    else:"
            yield from self._assignment(op, event, 8, {v: f"spare[{i}]" for i, v in enumerate(event.spares)})
            yield "    del spare"
        else:
            yield from self._assignment(event.call, event, indent)
        for later in spared:
            yield from self._keep_spares(later, event)
        for buffer, value in event.writes:
            yield from layout(f"{self.external[buffer]}.copy_", PythonTree("(", (self._read(value, event),)), 4)
        leaves = []
        for leaf, gradient in event.gives:
            leaves.append(quote(leaf_name(self.schedule.graph.trace, leaf)))
            yield from layout(f"gradients[{leaves[-1]}] = ", self._read(gradient, event), 4)
        if event.frees:
            names = ", ".join(self._local(value) for value in event.frees)
            lines = textwrap.wrap(names, WIDTH - 8, break_long_words=False)
            yield from (f"    del {line.removesuffix(',')}" for line in lines)
        for leaf in leaves:
            yield f"    yield {leaf}"

    def _assignment(
        self, call: Op | Implementation, event: ScheduledCall, indent: int, spares: Mapping[str, str] = NO_SPARES
    ) -> Iterator[str]:
        """`call` with its results under their names, those that `event` makes."""
        results = [self.names[tensor] if tensor in event.made else "_" for tensor in call.outputs]
        results = results if _in_pieces(call) else results[:1]
        comma = "," if len(results) == 1 and _in_pieces(call) else ""
        start = f"{', '.join(results)}{comma} = " if results else ""
        text = self._call(call, event, spares)
        if indent + len(start) + len(text.head) > WIDTH:
            yield f"{' ' * indent}("
            yield from (f"{' ' * indent}    {result}," for result in results)
            start = ") = "
        yield from layout(start, text, indent)

    def _keep_spares(self, later: ScheduledCall, event: ScheduledCall) -> Iterator[str]:
        """Keep what `later` reads in place of its result where `event` sees a scale that it cannot divide by."""
        assert later.op is not None
        graph = self.schedule.graph
        parts = affine(later.call)
        name = next((leaf_name(graph.trace, t) for t in graph.root(parts[0]) if t not in graph.producer), parts[0])
        overwritten = {graph.owner[e.overwrites] for e in self._events if e.overwrites is not None}
        copied = ("copy=True",) if any(graph.owner[value] in overwritten for value in later.spares) else ()
        values = PythonTree("[", tuple(self._local(value) for value in later.spares), "]")
        items = (values, *(self._read(part, event, event.call) for part in parts), quote(name), *copied)
        yield from layout(f"saved[{quote('spare ' + later.op.id)}] = ", PythonTree("inverting.spare(", items), 4)

    def _local(self, value: str) -> str:
        return self.names.get(value) or self.external[value]

    def _in_strides(self, root: str, spares: Mapping[str, str]) -> str:
        text = spares.get(root) or self._local(root)
        stride = self.schedule.graph.tensors[root].stride
        return text if stride is None else f"strides.exact({text}, {literal(stride)})"

    def _call(self, op: Op | Implementation, event: ScheduledCall, spares: Mapping[str, str] = NO_SPARES) -> PythonTree:
        if op.target in _BY_STRIDES:
            spares = {**spares, **{root: self._in_strides(root, spares) for root in self.schedule.graph.roots(op)}}
        items = [self._value(tree, op, event, spares) for tree in op.args or ()]
        items += [labelled(f"{key}=", self._value(tree, op, event, spares)) for key, tree in (op.kwargs or {}).items()]
        namespace, rest = _WITHOUT_STRIDES.get(op.target, op.target).split(".", 1)
        return PythonTree(f"{_NAMESPACES.get(namespace, 'torch.ops.' + namespace)}.{rest}(", tuple(items))

    def _read(
        self,
        tensor: str,
        event: ScheduledCall,
        reader: Op | Implementation | None = None,
        spares: Mapping[str, str] = NO_SPARES,
    ) -> str | PythonTree:
        """The expression of `tensor` where `event` reads it for a call of `reader`."""
        graph = self.schedule.graph
        buffer = graph.updated.get(tensor)
        if event.backward and buffer is not None:
            if reads_statistics_only(reader):
                return self.external[buffer]
            if tensor == buffer:
                return f"saved[{quote('before ' + buffer)}]"
        op = graph.producer.get(tensor)
        if op is None or not graph.is_view(op):
            return spares.get(tensor) or self._local(tensor)
        call = self._call(op, event, spares)
        inner = call.items[0]
        if isinstance(inner, PythonTree) and inner.head == call.head == _RESHAPE:
            return PythonTree(call.head, (inner.items[0], *call.items[1:]))
        if isinstance(inner, PythonTree) and inner.head == call.head == "aten.t.default(":
            return inner.items[0]
        return self._piece(op, tensor, call) if _in_pieces(op) else call

    def _piece(self, op: Op, tensor: str, call: PythonTree) -> PythonTree:
        """One of the views that `call` makes; where slicing makes the same, the others are not made."""
        place, axis = op.outputs.index(tensor), _split_axis(op)
        if axis is None:
            return PythonTree(call.head, call.items, f")[{place}]")
        if op.target == _UNBIND:
            return PythonTree("aten.select.int(", (call.items[0], str(axis), str(place)))
        tensors = self.schedule.graph.tensors
        sizes = [(tensors[piece].shape or ())[axis] for piece in op.outputs[: place + 1] if piece is not None]
        if len(sizes) <= place:
            return PythonTree(call.head, call.items, f")[{place}]")
        return PythonTree("aten.slice.Tensor(", (call.items[0], str(axis), str(sum(sizes[:-1])), str(sum(sizes))))

    def _value(
        self, tree: Any, op: Op | Implementation, event: ScheduledCall, spares: Mapping[str, str]
    ) -> str | PythonTree:
        if isinstance(tree, list | tuple):
            return PythonTree("[", tuple(self._value(item, op, event, spares) for item in tree), "]")
        if not isinstance(tree, dict):
            return quote(tree) if isinstance(tree, str) else repr(tree)
        ((key, value),) = tree.items()
        if key == "tensor":
            return self._read(value, event, op, spares)
        return word(key, value)

    def _peak(self, events: Iterable[ScheduledCall]) -> str:
        return format_bytes(max(event.live_bytes for event in events))


_RESERVED = (
    *("_", "aten", "backward", "buffers", "device", "forward", "gradients", "inputs", "inverting", "kernels"),
    *("objects", "parameters", "rng", "saved", "spare", "strides", "tangents", "torch"),
)
_NAMESPACES = {"aten": "aten", "treadle": "kernels"}
_RESHAPE = "aten.reshape.default("
_WITHOUT_STRIDES = {"aten.view.default": "aten.reshape.default", "aten._unsafe_view.default": "aten.reshape.default"}
"""Views that need certain strides, and calls that copy where a tensor has others than the capture expected: kernels
choose their own, and gradients come from the caller in any."""
_BY_STRIDES = (
    *("aten.as_strided.default", "aten.as_strided_copy.default", "aten.as_strided_scatter.default"),
    *("aten.view.dtype", "aten.view_as_complex.default"),
    *("aten.native_group_norm.default", "aten.native_group_norm_backward.default"),
    *("aten._cdist_forward.default", "aten._cdist_backward.default"),
    *("aten._weight_norm_interface.default", "aten._weight_norm_interface_backward.default"),
)
"""Calls that compute something else, or raise, where a tensor has other strides than the capture expected. Before the
later ones PyTorch itself makes tensors contiguous where they are not (derivatives.yaml), which the capture decides."""
_UNBIND = "aten.unbind.int"
_DEVICE = "    device = next(iter([*parameters.values(), *buffers.values(), *inputs])).device"


def _split_axis(op: Op) -> int | None:
    """The axis along which a view operator that returns several pieces cuts; None for any other."""
    place = {_UNBIND: 1, "aten.split.Tensor": 2, "aten.split_with_sizes.default": 2}.get(op.target)
    if place is None:
        return None
    axis = (op.args or ())[place] if len(op.args or ()) > place else (op.kwargs or {}).get("dim", 0)
    return axis if isinstance(axis, int) else None


def _in_pieces(call: Op | Implementation) -> bool:
    """Whether the call returns a list or tuple; capture numbers the pieces even where there is only one."""
    if isinstance(call, Implementation) and call.again:
        return False
    several = len(call.outputs) != 1
    return several or (not call.target.startswith("treadle.") and str(call.outputs[0]).endswith("_out0"))


def _names_device(events: Iterable[ScheduledCall]) -> bool:
    calls = [call for event in events for call in (event.op, event.call) if call]
    return any("'device'" in repr((call.args, call.kwargs)) for call in calls)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
