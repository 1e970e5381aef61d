"""An exported graph as a trace document."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx

from treadle.capture.joint import JointGraph, Mode, export
from treadle.capture.modules import modules_of
from treadle.capture.operator_calls import encode
from treadle.planner.documents import trace
from treadle.planner.documents.trace import Costs, Op, Phase, Role, Tensor, Trace
from treadle.planner.documents.values import Called, call_renamed, renamed
from treadle.planner.errors import InputError


def capture(function: Callable[[], Any], name: str, mode: Mode = "train") -> Trace:
    """The trace of the step that `function` describes, without costs (see `treadle.capture.costs`).

    `name` is what errors and the trace call it. Raises InputError when the step cannot be built or traced.
    """
    return to_trace(export(function, name, mode), name, mode)


def to_trace(joint: JointGraph, name: str, mode: Mode) -> Trace:
    """The same graph as a document: calls become ops, values tensors, shared storages aliases."""
    table = _Table(name)
    counts: dict[str, int] = {}
    for node in joint.graph.find_nodes(op="placeholder"):
        leaf = joint.leaves.get(node)
        role: Role = leaf.role if leaf else "tangent"
        index = counts[role] = counts.get(role, -1) + 1
        key = f"{role}_{index}"
        table.ids[node] = table.add(node, key, node.meta["val"], role, (), leaf.name if leaf else None)
    results = set(joint.outputs)
    ops = [_op(node, table, results) for node in joint.graph.nodes if node.op == "call_function" and not _picks(node)]

    made = {tensor: (place, index) for place, op in enumerate(ops) for index, tensor in enumerate(op.outputs)}
    gradients = {table.ids[node]: table.ids[leaf] for leaf, node in joint.gradients.items()}
    of_parameters = [
        table.ids[node] for leaf, node in joint.gradients.items() if joint.leaves[leaf].role == "parameter"
    ]
    tensors = table.tensors
    for gradient, leaf_id in gradients.items():
        tensors[gradient]["gradient_of"] = leaf_id
    inputs = tuple(table.ids[node] for node, leaf in joint.leaves.items() if leaf.role == "input")
    return Trace(
        version=trace.VERSION,
        name=name,
        mode=mode,
        source="torch-aot",
        costs=Costs(model="absent"),
        tensors=tuple(Tensor(**fields) for fields in tensors.values()),
        ops=tuple(ops),
        inputs=inputs,
        outputs=tuple(table.ids[node] for node in joint.outputs),
        tangents=tuple(table.ids[node] for node in joint.tangents),
        tangent_of=tuple(joint.tangents.values()),
        untrained=joint.untrained,
        gradient_order=tuple(sorted(of_parameters, key=lambda tensor: (made[table.owner(tensor)], made[tensor]))),
        updates=tuple((table.ids[buffer], table.ids[value]) for buffer, value in joint.updates.items()),
        detached=tuple(table.ids[node] for node in joint.detached),
        evaluating=joint.evaluating,
        autocast=joint.autocast,
        plain_peak_bytes=joint.plain_peak_bytes,
        returned=_returned(joint, table.ids),
        called=_called(joint.called, inputs),
    )


def _returned(joint: JointGraph, ids: dict[fx.Node, str]) -> Any:
    """The tree of what the step returns, or None where that is its one output or a tuple of several."""
    results = [{"tensor": index} for index in range(len(joint.outputs))]
    plain = results[0] if len(results) == 1 else {"tuple": results}
    names = {index: ids[node] for index, node in enumerate(joint.outputs)}
    return None if joint.returned == plain else renamed(joint.returned, names)


def _called(called: Called | None, inputs: Sequence[str]) -> Called | None:
    """How the step is called, or None where it takes its inputs in their order and no parameter has a name."""
    if called is None or (not called.parameters and called.in_order):
        return None
    return call_renamed(called, dict(enumerate(inputs)))


class _Table:
    """Tensors so far, by id, and which id each node and each storage goes by."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.tensors: dict[str, dict[str, Any]] = {}
        self.ids: dict[fx.Node, str] = {}
        self.owners: dict[int, str] = {}
        self.storages: dict[str, int] = {}

    def owner(self, key: str) -> str:
        """The tensor whose storage `key` lives in."""
        return self.owners[self.storages[key]]

    def add(
        self, node: fx.Node, key: str, value: Any, role: Role, inputs: Iterable[str], name: str | None = None
    ) -> str:
        """Record `value` as tensor `key`; an alias where it shares the storage of an earlier one."""
        if not isinstance(value, torch.Tensor):
            raise InputError(f"{node.name} makes a {type(value).__name__}, expected tensors only", where=self.where)
        held = value.untyped_storage()
        size, owner = value.numel() * value.element_size(), self.owners.get(held._cdata)
        fields = {
            "id": key,
            "role": role,
            "bytes": size,
            "shape": tuple(value.shape),
            "stride": tuple(value.stride()),
            "dtype": str(value.dtype).removeprefix("torch."),
            "name": name,
        }
        if owner is not None:
            fields["alias_of"] = next((i for i in inputs if self.storages[i] == held._cdata), owner)
        elif held.nbytes() > size and role != "tangent":  # traced like its output, but the caller makes it
            fields["storage_bytes"] = held.nbytes()
        self.tensors[key] = fields
        self.owners.setdefault(held._cdata, key)
        self.storages[key] = held._cdata
        return key


def _op(node: fx.Node, table: _Table, results: set[fx.Node]) -> Op:
    if not isinstance(node.target, torch._ops.OpOverload):
        raise InputError(f"the step calls {node.target}, which cannot be traced to plain operators", where=table.where)
    target = str(node.target)
    inputs = tuple(dict.fromkeys(table.ids[node] for node in node.all_input_nodes))
    phase: Phase = "backward" if node.meta.get("partitioner_tag") == "is_backward" else "forward"
    role: Role = "gradient" if phase == "backward" else "activation"

    value = node.meta.get("val")
    picks = {user.args[1]: user for user in node.users if _picks(user)}
    outputs: list[str | None] = []
    if isinstance(value, list | tuple):
        for index, part in enumerate(value):
            pick = picks.get(index)
            if part is None:
                outputs.append(None)
                continue
            key = table.add(node, f"{node.name}_out{index}", part, "output" if pick in results else role, inputs)
            outputs.append(key)
            if pick is not None:
                table.ids[pick] = key
    elif value is not None:
        table.ids[node] = table.add(node, node.name, value, "output" if node in results else role, inputs)
        outputs.append(node.name)

    def tensor_id(argument: Any) -> str | None:
        return table.ids[argument] if isinstance(argument, fx.Node) else None

    schema = node.target._schema.arguments
    written = [argument for argument in schema if argument.alias_info and argument.alias_info.is_write]
    mutated = [node.args[schema.index(a)] if not a.kwarg_only else node.kwargs.get(a.name) for a in written]
    return Op(
        id=node.name,
        target=target,
        phase=phase,
        inputs=inputs,
        outputs=tuple(outputs),
        mutates=tuple(table.ids[argument] for argument in mutated if isinstance(argument, fx.Node)),
        args=tuple(encode(argument, tensor_id) for argument in node.args),
        kwargs={key: encode(argument, tensor_id) for key, argument in node.kwargs.items()} or None,
        random=_draws(node),
        modules=modules_of(node) if phase == "forward" else (),
    )


def _picks(node: fx.Node) -> bool:
    return node.target is operator.getitem


def _draws(node: fx.Node) -> bool:
    """Whether the call reads the random number generator; dropout at probability zero does not."""
    assert isinstance(node.target, torch._ops.OpOverload)
    if torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    for place, argument in enumerate(node.target._schema.arguments):
        if argument.name in ("dropout_p", "p"):
            named = node.kwargs.get(argument.name, argument.default_value)
            return bool((node.args[place] if place < len(node.args) else named) != 0)
    return True
