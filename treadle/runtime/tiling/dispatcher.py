"""What DTensor's dispatcher would do at each call of a plan: whether it would redistribute an input that the plan
leaves, or leave a result in another tiling than the plan says.

It is asked, not used: the generated step works on tiles, since the dispatcher decides on its own where a call reads
other tilings than its rules allow, and has no rules for some calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._op_schema import OpSchema
from torch.utils import _pytree

from treadle.capture.operator_calls import decode, operator
from treadle.codegen.tiling.dtensor_model import ADDING, FILLING, SIZED
from treadle.codegen.tiling.moves import local_shape
from treadle.planner.documents.trace import Op, Tensor, Trace
from treadle.planner.passes.tiling.decisions import NodeTiling, TilingDecisions
from treadle.planner.passes.tiling.problem import ArrayTiling
from treadle.runtime.tiling.collectives import placements, words


@dataclass(frozen=True)
class Confirmed:
    """`findings` is a line for each call that the dispatcher would change; `unknown` are the operators without rules
    of its own, which read or leave tiles that are cut."""

    calls: int
    findings: tuple[str, ...]
    unknown: tuple[str, ...]


def confirmed(decisions: TilingDecisions, trace: Trace, mesh: DeviceMesh) -> Confirmed:
    """The calls of `trace` whose tilings DTensor's rules confirm. `mesh` has the axes of the plan."""
    tensors, ops = {tensor.id: tensor for tensor in trace.tensors}, {op.id: op for op in trace.ops}
    inputs = {node.id: node.inputs for node in decisions.problem.nodes}
    calls, findings, unknown = 0, [], set[str]()
    for node in decisions.nodes:
        op = ops.get(node.node)
        if op is None or all(set(tiling) == {"R"} for tiling in (*node.reads, *node.makes)):
            continue
        if not op.inputs or op.target.split(".")[1] in FILLING:
            continue
        answer = _asked(op, inputs[node.node], node, tensors, mesh)
        if answer is None:
            unknown.add(op.target)
            continue
        calls += 1
        finding = _difference(op, node, answer, tensors, decisions)
        if finding is not None:
            findings.append(f"{op.id} ({op.target}): {finding}")
    return Confirmed(calls, tuple(findings), tuple(sorted(unknown)))


def _asked(op: Op, names: tuple[str, ...], node: NodeTiling, tensors: dict[str, Tensor], mesh: DeviceMesh) -> Any:
    """The dispatcher's OutputSharding, None where it has no rules."""
    propagator = DTensor._op_dispatcher.sharding_propagator
    try:
        call = operator(op.target)
        reads = [*node.reads]
        if op.target in ADDING and "P" in node.makes[0]:
            reads[0] = tuple("P" if made == "P" else read for made, read in zip(node.makes[0], reads[0], strict=True))
        specs = {name: _spec(tensors[name], tiling, mesh) for name, tiling in zip(names, reads, strict=True)}
        args = tuple(decode(tree, specs) for tree in op.args or ())
        kwargs = {key: decode(tree, specs) for key, tree in (op.kwargs or {}).items()}
        info = propagator.op_to_schema_info.get(call)
        return propagator.propagate_op_sharding_non_cached(OpSchema(call, args, kwargs, schema_info=info))
    except (NotImplementedError, RuntimeError, AssertionError, ValueError, IndexError):
        return None


def _spec(tensor: Tensor, tiling: ArrayTiling, mesh: DeviceMesh) -> DTensorSpec:
    shape, stride = torch.Size(tensor.shape or ()), tuple(tensor.stride or ())
    return DTensorSpec(
        mesh, tuple(placements(tiling)), tensor_meta=TensorMeta(shape, stride, getattr(torch, str(tensor.dtype)))
    )


def _difference(
    op: Op, node: NodeTiling, answer: Any, tensors: dict[str, Tensor], decisions: TilingDecisions
) -> str | None:
    made = [tensor for tensor in op.outputs if tensor is not None]
    name, schema = op.target.split(".")[1], answer.redistribute_schema
    if answer.needs_redistribute and not (name in SIZED and answer.use_val_from_redistribute_schema):
        wanted = [words(spec.placements) for spec in _specs((schema.args_schema, schema.kwargs_schema))]
        if wanted != [*map(list, node.reads)]:
            return f"the dispatcher would read it in {wanted}, the plan reads {[*map(list, node.reads)]}"
    if name in SIZED and schema is not None and made:
        wanted, planned = schema.args_schema[SIZED[name]], tensors[made[0]].shape or ()
        tile = local_shape(planned, node.makes[0], decisions.problem.mesh)
        if tuple(wanted) not in (tile, tuple(planned)):
            return f"the dispatcher would make a tile of {list(wanted)}, the plan makes {list(tile)}"
    output = answer.output_spec
    several = output if isinstance(output, list | tuple) else [output]
    for spec, tensor, tiling in zip(
        [spec for spec, each in zip(several, op.outputs, strict=False) if each is not None],
        made,
        node.makes,
        strict=False,
    ):
        if spec is not None and words(spec.placements) != list(tiling):
            return f"the dispatcher would leave {tensor!r} in {words(spec.placements)}, the plan in {list(tiling)}"
    return None


def _specs(tree: Any) -> list[DTensorSpec]:
    leaves = _pytree.tree_leaves(tree, is_leaf=lambda leaf: isinstance(leaf, DTensorSpec))
    return [leaf for leaf in leaves if isinstance(leaf, DTensorSpec)]
