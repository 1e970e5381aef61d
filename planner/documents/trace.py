"""The trace: the dataflow graph of one step of a model, with the costs of its operators.

A tensor that shares another's storage (a view, an in-place result) names it in `alias_of`; bytes are
counted once, at the owner. What an imported format does not contain is absent, never invented.
"""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal

from treadle.planner.documents.arguments import DTYPES, call_problems, input_problems, word_expected
from treadle.planner.documents.scalars import Count, Document, Name, Positive, Record
from treadle.planner.documents.values import Called, called_problems, value_problems

VERSION = 1

Role = Literal["parameter", "buffer", "input", "tangent", "activation", "gradient", "output", "unknown"]
Phase = Literal["forward", "backward", "optimizer", "unknown"]


class Tensor(Record, frozen=True, kw_only=True):
    """One value. `bytes` is what its elements take; the storage belongs to the end of the `alias_of` chain."""

    id: Name
    role: Role
    bytes: Count | None = None
    shape: tuple[Count, ...] | None = None
    stride: tuple[Count, ...] | None = None
    dtype: Name | None = None
    alias_of: Name | None = None
    name: Name | None = None
    """Qualified name in the model, for parameters and buffers."""
    gradient_of: Name | None = None
    """Tensor id of the parameter or input whose final gradient this is."""
    storage_bytes: Count | None = None
    """Bytes of the whole storage where this tensor owns one larger than itself."""


class Implementation(Record, frozen=True, kw_only=True):
    """Another call that makes the same results as the op it belongs to; a planner may choose it instead.

    `target` is an operator overload, or `treadle.NAME` for a kernel of `treadle.kernels`. `outputs` are as those of
    the op, null where this call does not make them. `overwrites` is the input whose memory the first result takes
    over. With `again` it can only stand for a repeated run, because it reads what the first one left; it returns the
    first result only.
    """

    name: Name
    family: str
    """What has to be switched on for it: conv, out, int, inplace, grad-inplace, rng, statistics; two with a plus sign
    between them where it needs both; empty for always."""
    target: Name
    inputs: tuple[Name, ...] = ()
    outputs: tuple[Name | None, ...] = ()
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    overwrites: Name | None = None
    again: bool = False
    returns_new: bool = False
    """As of an op."""
    flops: Count | None = None
    bytes_moved: Count | None = None
    workspace_bytes: Count | None = None
    time_ns: Count | None = None


class Op(Record, frozen=True, kw_only=True):
    """One operator call.

    `args` and `kwargs` are the call's argument tree: numbers, strings, booleans, null and lists stand for
    themselves; `{"tensor": id}`, `{"dtype": "float32"}`, `{"device": "cpu"}`, `{"layout": "strided"}`,
    `{"memory_format": "contiguous_format"}` and `{"float": "-inf"}` for what JSON cannot hold.
    """

    id: Name
    target: Name
    """Operator overload as the framework names it, for example `aten.convolution.default`."""
    phase: Phase
    inputs: tuple[Name, ...] = ()
    outputs: tuple[Name | None, ...] = ()
    """Tensor id of each result in order; null where the operator returned none."""
    mutates: tuple[Name, ...] = ()
    after: tuple[Name, ...] = ()
    """Op ids this one waits for besides the producers of its inputs."""
    args: tuple[Any, ...] | None = None
    kwargs: dict[str, Any] | None = None
    random: bool = False
    """Draws from the random number generator."""
    returns_new: bool = False
    """Its results are new memory only: the framework has no form of it that writes into given tensors. A runtime that
    gives out addresses copies them to their places, so for a moment both exist."""
    modules: tuple[Name, ...] = ()
    """Qualified names of the modules inside whose forward passes the call is made, outermost first and without the
    model itself; `NAME#2` is the second call of a module in the step."""
    flops: Count | None = None
    bytes_moved: Count | None = None
    workspace_bytes: Count | None = None
    """Most bytes that it allocates while it runs beyond its results."""
    time_ns: Count | None = None
    family: str = ""
    """As of an implementation, where the call itself is one of several."""
    implementations: tuple[Implementation, ...] = ()
    """Other calls that make the same results."""
    intermediate_of: Name | None = None
    """Id of the forward op whose by-product it makes. It runs only where a plan wants what it makes, and only in a
    stage in which that op runs."""
    start_ns: Count | None = None
    stream: Name | None = None
    comm: dict[str, Any] | None = None
    """Communication facts of an imported trace: collective, bytes, peer, group."""

    @property
    def variants(self) -> tuple[Call, ...]:
        """Its own call and its other implementations."""
        return (self, *self.implementations)


Call = Op | Implementation


class OpRun(Record, frozen=True, kw_only=True):
    """One run of a trace op, where ops run repeatedly or by another implementation than their own call."""

    op: Name
    implementation: Name = "default"


NARROW = frozenset(word for word in DTYPES if word.startswith(("bfloat16", "float16", "float8", "float4")))
"""Floating types of 16 bits or less."""


class Costs(Record, frozen=True, kw_only=True):
    """Where `time_ns` comes from."""

    model: Literal["measured", "roofline", "recorded", "absent"]
    device: Name | None = None
    """The device it was measured on, or the hardware profile of the roofline."""


class Trace(Document, frozen=True, kw_only=True, tag_field="kind", tag="trace"):
    """One step. `ops` are in execution order."""

    version: Positive
    name: Name
    mode: Literal["train", "infer", "unknown"]
    """Unknown where an imported format does not say and nothing in it is a backward op."""
    source: Literal["torch-aot", "execution-trace", "kineto", "chakra", "memory-snapshot", "hand"]
    entry: Name | None = None
    """MODULE:FUNCTION it was captured from."""
    costs: Costs
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    inputs: tuple[Name, ...] = ()
    """The call's tensor arguments in order (role input)."""
    outputs: tuple[Name, ...] = ()
    """What the step hands to its caller, in order."""
    tangents: tuple[Name, ...] = ()
    """Gradients of `outputs` that start the backward pass, in the order of the outputs that need one."""
    tangent_of: tuple[Count, ...] = ()
    """Index in `outputs` of the output that each of `tangents` is the gradient of; absent where every output has one,
    in order."""
    untrained: tuple[Count, ...] = ()
    """Indices in `outputs` of those that have a gradient in the model and none here, as they stand next to a loss."""
    gradient_order: tuple[Name, ...] = ()
    """Gradient tensors of parameters in the order in which what makes their memory runs."""
    updates: tuple[tuple[Name, Name], ...] = ()
    """(buffer id, tensor id holding its new value) written back after the forward pass."""
    detached: tuple[Name, ...] = ()
    """Parameters and inputs that may require a gradient although the step computes none of them."""
    evaluating: tuple[str, ...] = ()
    """Qualified names of the modules that were in evaluation mode in a training step; the model itself is ''."""
    autocast: Name | None = None
    """The dtype of the `torch.autocast` around the step; absent where there was none."""
    plain_peak_bytes: Count | None = None
    """Peak of live tensor bytes of the training step in plain PyTorch, from no gradients; absent where not known."""
    returned: Any = None
    """What the caller gets where it is not the one output or a tuple of them: a tree of values (see
    `treadle.planner.documents.values`) over `outputs`."""
    called: Called | None = None
    """What the step is called with; None for the tensors `inputs` in their order, by place only."""

    @property
    def narrow(self) -> bool:
        """Whether the step computes in floating types of 16 bits or less, also where it turns autocast on itself."""
        return self.autocast is not None or any(tensor.dtype in NARROW for tensor in self.tensors)

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield (path, found, expected) for every broken cross reference."""
        known: dict[str, int] = {}
        for index, tensor in enumerate(self.tensors):
            path = f"$.tensors[{index}]"
            if tensor.id in known:
                yield f"{path}.id", f"second tensor {tensor.id!r}", "ids that occur once"
            known.setdefault(tensor.id, index)
        for index, tensor in enumerate(self.tensors):
            for field in ("alias_of", "gradient_of"):
                target = getattr(tensor, field)
                if target is not None and target not in known:
                    yield f"$.tensors[{index}].{field}", f"unknown tensor {target!r}", "the id of a tensor"
        yield from self._op_problems(known)
        yield from self._call_problems()
        for field in ("inputs", "outputs", "tangents", "gradient_order", "detached"):
            for index, target in enumerate(getattr(self, field)):
                if target not in known:
                    yield f"$.{field}[{index}]", f"unknown tensor {target!r}", "the id of a tensor"
        for index, pair in enumerate(self.updates):
            for target in pair:
                if target not in known:
                    yield f"$.updates[{index}]", f"unknown tensor {target!r}", "the id of a tensor"
        yield from self._tangent_problems()
        yield from self._value_problems()
        yield from _cycle(
            {t.id: (t.alias_of,) for t in self.tensors if t.alias_of is not None},
            "$.tensors",
            "alias_of chains that end",
        )

    def _tangent_problems(self) -> Iterator[tuple[str, str, str]]:
        found, wanted = len(self.tangent_of), len(self.tangents)
        if found not in (0, wanted):
            yield "$.tangent_of", f"{found} outputs for {wanted} tangents", "one output for each tangent"
        for index, output in enumerate(self.tangent_of):
            path = f"$.tangent_of[{index}]"
            if output >= len(self.outputs):
                yield path, f"output {output}", f"an index below {len(self.outputs)}, the number of outputs"
            elif output in self.tangent_of[:index]:
                yield path, f"output {output} again", "outputs that occur once"
        for index, output in enumerate(self.untrained):
            if output >= len(self.outputs):
                yield f"$.untrained[{index}]", f"output {output}", f"an index below {len(self.outputs)}"

    def _value_problems(self) -> Iterator[tuple[str, str, str]]:
        yield from value_problems("$.returned", self.returned, self.outputs, "outputs")
        if self.called is not None:
            yield from called_problems("$.called", self.called, self.inputs)

    def _call_problems(self) -> Iterator[tuple[str, str, str]]:
        """What generated programs could not spell: calls without recorded arguments are never generated."""
        if self.autocast is not None and self.autocast not in DTYPES:
            yield "$.autocast", repr(self.autocast), word_expected("dtype")
        calls = [(f"$.ops[{index}]", op) for index, op in enumerate(self.ops) if op.args is not None]
        for path, op in calls:
            yield from call_problems(path, op.target, op.args, op.kwargs)
            yield from input_problems(path, op.inputs, op.args, op.kwargs)
        for index, tensor in enumerate(self.tensors if calls else ()):
            if tensor.dtype is not None and tensor.dtype not in DTYPES:
                yield f"$.tensors[{index}].dtype", repr(tensor.dtype), word_expected("dtype")
        for index, op in enumerate(self.ops):
            for place, variant in enumerate(op.implementations):
                path = f"$.ops[{index}].implementations[{place}]"
                yield from call_problems(path, variant.target, variant.args, variant.kwargs)
                yield from input_problems(path, variant.inputs, variant.args, variant.kwargs)

    def _op_problems(self, known: dict[str, int]) -> Iterator[tuple[str, str, str]]:
        position: dict[str, int] = {}
        producer: dict[str, str] = {}
        for index, op in enumerate(self.ops):
            path = f"$.ops[{index}]"
            if op.id in position:
                yield f"{path}.id", f"second op {op.id!r}", "ids that occur once"
            position.setdefault(op.id, index)
            for field in ("inputs", "outputs", "mutates"):
                for place, target in enumerate(getattr(op, field)):
                    if target is not None and target not in known:
                        yield f"{path}.{field}[{place}]", f"unknown tensor {target!r}", "the id of a tensor"
            for target in op.outputs:
                if target is None:
                    continue
                if target in producer:
                    yield f"{path}.outputs", f"tensor {target!r} also made by {producer[target]!r}", "one producer"
                producer.setdefault(target, op.id)
        graph: dict[str, tuple[str, ...]] = {}
        for index, op in enumerate(self.ops):
            for place, other in enumerate(op.after):
                if other not in position:
                    yield f"$.ops[{index}].after[{place}]", f"unknown op {other!r}", "the id of an op"
            graph[op.id] = (*op.after, *(producer[i] for i in op.inputs if i in producer))
        yield from _cycle(graph, "$.ops", "an acyclic graph")


def _cycle(graph: dict[str, tuple[str, ...]], path: str, expected: str) -> Iterator[tuple[str, str, str]]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield path, "a cycle: " + " -> ".join(error.args[1][:6]), expected
