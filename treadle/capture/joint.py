"""The joint forward and backward graph of one step, through AOT autograd on fake tensors.

Fake tensors carry shapes and strides but no memory, so a model of any size is traced in seconds. The graph is
functional: where the model writes into a buffer, the graph computes the buffer's new value instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, _BypassDispatchCache, unset_fake_temporarily
from torch.utils._pytree import tree_leaves

from planner.errors import InputError, TreadleError
from treadle.capture.load import Step, build_step

Mode = Literal["train", "infer"]


@dataclass(frozen=True)
class Leaf:
    """What a placeholder of the graph stands for."""

    role: Literal["parameter", "buffer", "input"]
    name: str | None
    """Qualified name in the model, for parameters and buffers."""


@dataclass(frozen=True)
class JointGraph:
    """`graph` computes, in its order, what the other fields name by their nodes."""

    graph: fx.Graph
    leaves: dict[fx.Node, Leaf]
    tangents: list[fx.Node]
    outputs: list[fx.Node]
    gradients: dict[fx.Node, fx.Node]
    """From the placeholder of a parameter or input to its gradient."""
    updates: dict[fx.Node, fx.Node]
    """From the placeholder of a buffer to its value after the step."""


def export(function: Callable[[], Any], where: str, mode: Mode) -> JointGraph:
    """Trace the step that `function` describes (`treadle.capture.load.build_step`).

    In mode `train` the graph holds forward and backward; with a loss the backward starts from the loss, without one
    from a tangent for every output that needs a gradient. In mode `infer` it holds the forward only and the model is
    put into evaluation mode. Raises InputError when the step cannot be traced.
    """
    with _ExactStorages(allow_non_fake_inputs=False) as fake:
        with _conversions_allowed(fake):
            step = build_step(function, where)
        if mode == "infer":
            step.model.eval()
        leaves, tensors = _leaves(step, fake)
        if mode == "train" and not any(tensor.requires_grad for tensor in tensors):
            raise InputError("no parameter or input requires a gradient; capture it with --infer", where=where)
        captured = _trace(step, leaves, tensors, where, mode, copy_outputs=False)
        if captured is None:
            captured = _trace(step, leaves, tensors, where, mode, copy_outputs=True)
        if captured is None:
            raise InputError("the outputs of the step share memory in a way that cannot be traced", where=where)
        if mode == "train" and not captured.gradients:
            raise InputError("no output depends on a parameter by gradient; capture it with --infer", where=where)
        _separate_gradients(captured)
    return captured


class _ExactStorages(FakeTensorMode):
    """Fake tensors that never answer from the cache where a storage is larger than its tensor.

    PyTorch's cache forgets such a size, so what a trace says of it would depend on what was traced before.
    """

    def _validate_output_for_cache_entry(
        self, state: Any, key: Any, func: Any, args: Any, kwargs: Any, output: Any
    ) -> None:
        super()._validate_output_for_cache_entry(state, key, func, args, kwargs, output)
        size = output.numel() * output.element_size() if isinstance(output, Tensor) else 0
        if isinstance(output, Tensor) and not func.is_view and output.untyped_storage().nbytes() != size:
            raise _BypassDispatchCache("storage larger than its tensor")


@contextmanager
def _conversions_allowed(fake: FakeTensorMode) -> Iterator[None]:
    """Let `model.to(dtype)` work on fake parameters.

    It swaps tensors in place, which PyTorch refuses while a weak reference to them is in the mode's memo; a plain
    dictionary as memo holds none.
    """
    converter = fake.fake_tensor_converter.meta_converter
    memo = converter.tensor_memo
    converter.tensor_memo = {}  # type: ignore[assignment]
    try:
        yield
    finally:
        converter.tensor_memo = memo


class _Whole(nn.Module):
    """Model and loss as one module, so that parameters can be swapped for the whole step."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.model, self.loss = step.model, step.loss

    def forward(self, *inputs: Tensor) -> Any:
        return self.loss(self.model, *inputs) if self.loss else self.model(*inputs)


class _Functional(nn.Module):
    """The step as a function of parameters, buffers and inputs; shared parameters occur once."""

    def __init__(self, step: Step, names: list[str], where: str, copy_outputs: bool) -> None:
        super().__init__()
        whole = _Whole(step)

        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            state = {f"model.{name}": tensor for name, tensor in zip(names, tensors, strict=False)}
            result = torch.func.functional_call(whole, state, tensors[len(names) :])
            outputs = tuple(leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
            if not outputs:
                raise InputError("the step returned no tensor, expected at least one", where=where)
            if step.loss and (len(outputs) != 1 or outputs[0].numel() != 1):
                shapes = ", ".join(str(tuple(output.shape)) for output in outputs)
                raise InputError(f"the loss returned tensors of shape {shapes}, expected one scalar", where=where)
            return tuple(output.clone() for output in outputs) if copy_outputs else outputs

        self.run = run

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self.run(*tensors)


def _leaves(step: Step, fake: FakeTensorMode) -> tuple[list[Leaf], list[Tensor]]:
    parameters, buffers = dict(step.model.named_parameters()), dict(step.model.named_buffers())
    leaves = [Leaf("parameter", name) for name in parameters] + [Leaf("buffer", name) for name in buffers]
    leaves += [Leaf("input", None) for _ in step.inputs]
    tensors = [*parameters.values(), *buffers.values(), *step.inputs]
    return leaves, [x if isinstance(x, FakeTensor) else fake.from_tensor(x, static_shapes=True) for x in tensors]


def _trace(
    step: Step, leaves: list[Leaf], tensors: list[Tensor], where: str, mode: Mode, copy_outputs: bool
) -> JointGraph | None:
    """None when outputs share memory with each other or with inputs, which only copies can express."""
    names = [leaf.name for leaf in leaves if leaf.name is not None]
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad() if mode == "infer" else nullcontext())
        try:
            module = aot_export_joint_with_descriptors(
                stack, _Functional(step, names, where, copy_outputs), tuple(tensors)
            ).graph_module
        except TreadleError:
            raise
        except Exception as error:
            text = " ".join(str(error).split())
            if "Unexpected fake buffer" in text:
                message = "the step uses a tensor from elsewhere; make it a buffer of the model or an input of the step"
                raise InputError(message, where=where) from error
            raise InputError(f"the step cannot be traced: {type(error).__name__}: {text[:400]}", where=where) from error
    _simplify(module, where)
    for node in module.graph.nodes:
        for value in tree_leaves(node.meta.get("val")):
            if isinstance(value, Tensor) and value.layout != torch.strided:
                kind = str(value.layout).removeprefix("torch.")
                raise InputError(f"{node.name} makes a {kind} tensor, expected dense ones only", where=where)
    return _read(module.graph, leaves, mode)


def _simplify(module: fx.GraphModule, where: str) -> None:
    """Drop what changes no value: detach, runtime assertions, and everything nobody reads. Inline scalar constants."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.op == "get_attr":
            _inline_constant(module, node, where)
        elif node.op == "call_function" and node.target in _SAME_VALUE:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.op == "call_function" and "_assert" in str(node.target):
            graph.erase_node(node)
    for node in reversed(graph.nodes):
        if node.op == "call_function" and not node.users:
            graph.erase_node(node)


_SAME_VALUE = (torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.aten.lift_fresh.default)


def _inline_constant(module: fx.GraphModule, node: fx.Node, where: str) -> None:
    value = getattr(module, str(node.target), None)
    known = value.constant if isinstance(value, FakeTensor) else value
    if not isinstance(known, Tensor) or known.dim() > 0:
        raise InputError(
            "the step makes a constant tensor while it runs; make it a buffer of the model or an input of the step",
            where=where,
        )
    with module.graph.inserting_before(node), unset_fake_temporarily():
        scalar = module.graph.call_function(
            torch.ops.aten.scalar_tensor.default, (known.item(),), {"dtype": known.dtype, "device": known.device}
        )
    scalar.meta = {**node.meta, "val": node.meta.get("val", value)}
    for user in node.users:
        scalar.meta.setdefault("partitioner_tag", user.meta.get("partitioner_tag", "is_forward"))
    node.replace_all_uses_with(scalar)
    module.graph.erase_node(node)


def _read(graph: fx.Graph, leaves: list[Leaf], mode: Mode) -> JointGraph | None:
    """Match the graph's placeholders and results with what they mean, by AOT autograd's descriptors."""
    known: dict[fx.Node, Leaf] = {}
    by_index: dict[int, fx.Node] = {}
    tangents: list[fx.Node] = []
    for node in graph.find_nodes(op="placeholder"):
        descriptor = node.meta["desc"]
        kind = type(descriptor).__name__
        if kind == "PlainAOTInput":
            known[node], by_index[descriptor.idx] = leaves[descriptor.idx], node
        elif kind == "TangentAOTInput":
            tangents.append(node)
        else:
            return None
    (final,) = graph.find_nodes(op="output")
    outputs: list[fx.Node] = []
    gradients: dict[fx.Node, fx.Node] = {}
    updates: dict[fx.Node, fx.Node] = {}
    for node, descriptor in zip(final.args[0], final.meta["desc"], strict=True):
        kind = type(descriptor).__name__
        if node is None:  # an input without gradient
            continue
        if kind == "PlainAOTOutput":
            outputs.append(node)
        elif kind == "InputMutationAOTOutput" and type(descriptor.mutated_input).__name__ == "PlainAOTInput":
            updates[by_index[descriptor.mutated_input.idx]] = node
        elif kind == "GradAOTOutput" and type(descriptor.grad_of).__name__ == "PlainAOTInput":
            gradients[by_index[descriptor.grad_of.idx]] = node
        else:
            return None
    seen = {storage(node) for node in known}
    for node in outputs:
        if storage(node) in seen:
            return None
        seen.add(storage(node))
    return JointGraph(graph, known, tangents, outputs, gradients, updates)


def storage(node: fx.Node) -> int:
    """Identity of the storage that the node's tensor lives in."""
    return node.meta["val"].untyped_storage()._cdata


def _separate_gradients(joint: JointGraph) -> None:
    """Give every gradient a tensor of its own: no two in one, none that is also an output, and none expanded."""
    taken = {storage(node) for node in (*joint.leaves, *joint.tangents, *joint.outputs, *joint.updates.values())}
    nodes: set[fx.Node] = set()
    for leaf, gradient in joint.gradients.items():
        value = gradient.meta["val"]
        expanded = value.untyped_storage().nbytes() < value.numel() * value.element_size()
        if gradient in nodes or storage(gradient) in taken or expanded:
            with joint.graph.inserting_before(_first_after(joint.graph, gradient)):
                copy = joint.graph.call_function(
                    torch.ops.aten.clone.default, (gradient,), {"memory_format": torch.contiguous_format}
                )
            copy.meta = {"val": value.clone(memory_format=torch.contiguous_format), "partitioner_tag": "is_backward"}
            joint.gradients[leaf] = gradient = copy
        nodes.add(gradient)


def _first_after(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """The first place in the backward pass where `node` is known."""
    passed = False
    for other in graph.nodes:
        if passed and (other.op == "output" or other.meta.get("partitioner_tag") == "is_backward"):
            return other
        passed = passed or other is node
    raise AssertionError("a graph ends in its output")
