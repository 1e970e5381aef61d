"""What an exported graph has beyond the step's own operators: detached values, assertions, constants."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from treadle.planner.errors import InputError


def simplify(module: fx.GraphModule, where: str) -> None:
    """Drop what changes no value: detach, runtime assertions, and unread values. Inline scalar constants."""
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


MOST_SCALARS = 64
"""Elements of a constant tensor that are made one by one."""


def _inline_constant(module: fx.GraphModule, node: fx.Node, where: str) -> None:
    """Calls that make the constant tensor, in its place."""
    value = getattr(module, str(node.target), None)
    known = value.constant if isinstance(value, FakeTensor) else value
    if not isinstance(known, Tensor):
        raise _too_large(where)
    with unset_fake_temporarily():
        uniform = known.numel() == 0 or bool((known == known.flatten()[0]).all())
        elements = known.flatten()[: MOST_SCALARS + 1].tolist()
    if not uniform and known.dim() > 0 and len(elements) > MOST_SCALARS:
        raise _too_large(where)
    options = {"dtype": known.dtype, "device": known.device}
    aten = torch.ops.aten
    with module.graph.inserting_before(node), unset_fake_temporarily():

        def call(target: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> fx.Node:
            made = module.graph.call_function(target, args, kwargs)
            made.meta = {key: item for key, item in node.meta.items() if key != "val"}
            return made

        if known.dim() == 0:
            made = [call(aten.scalar_tensor.default, elements[0], **options)]
        elif uniform:
            made = [call(aten.full.default, list(known.shape), elements[0] if elements else 0, **options)]
        else:
            made = [call(aten.scalar_tensor.default, element, **options) for element in elements]
            made += [call(aten.stack.default, list(made))]
            made += [call(aten.reshape.default, made[-1], list(known.shape))] if known.dim() > 1 else []
    for each in made:
        each.meta["val"] = value if each is made[-1] else _shaped(each)
        for user in node.users:
            each.meta.setdefault("partitioner_tag", user.meta.get("partitioner_tag", "is_forward"))
    node.replace_all_uses_with(made[-1])
    module.graph.erase_node(node)


def _shaped(node: fx.Node) -> Any:
    """What the call of `node` makes, from tensors without memory."""
    assert isinstance(node.target, torch._ops.OpOverload)
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
    return node.target(*args, **kwargs)


def _too_large(where: str) -> InputError:
    text = "the step makes a constant tensor while it runs; make it a buffer of the model or an input of the step"
    return InputError(text, where=where)
