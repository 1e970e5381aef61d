"""The work of a stage on one rank: bytes from and to memory, multiplications, messages.

Bytes are those of `counts`, by dtype, but for one thing: where a kernel needs the reduction of a whole tensor before it
goes on (Norm, ReduceTensor without `dim`), it runs in phases, and what both phases need is read twice or kept in memory
between them (CoCoNet, section 5.2: LAMB inside a collective).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from treadle.planner.machine.collectives import Movement
from treadle.planner.machine.dtypes import BYTES
from treadle.planner.machine.products import Product
from treadle.planner.passes.fusion.buckets import ENTRY_BYTES, LIMIT
from treadle.planner.passes.fusion.counts import stored, sums_slices
from treadle.planner.passes.fusion.layouts import Sliced
from treadle.planner.passes.fusion.program import Bindings, Node, Program, TensorType
from treadle.planner.passes.fusion.stages import Stage, behind, moves_data, phases, reduces_all


@dataclass(frozen=True)
class Work:
    """Work of one rank: `movements` in order; `small` are those of the scalars that reductions over slices add."""

    loaded: float
    stored: float
    products: tuple[Product, ...]
    movements: tuple[Movement, ...]
    small: tuple[Movement, ...]
    computes: bool
    """Whether it does more than what its collectives do."""
    offset: int
    """Offset of the group that it runs in."""

    @property
    def memory(self) -> float:
        return self.loaded + self.stored


def local_elements(of: TensorType, bindings: Bindings) -> int:
    """Elements on the rank that has most of them."""
    values = bindings.values
    shape = [extent.value(values) for extent in of.shape]
    if not isinstance(of.layout, Sliced):
        return prod(shape)
    if of.layout.dim < 0:
        return -(-prod(shape) // bindings.ranks)
    part = -(-shape[of.layout.dim] // bindings.ranks)
    return prod(shape[: of.layout.dim]) * part * prod(shape[of.layout.dim + 1 :])


def local_bytes(of: TensorType, bindings: Bindings) -> int:
    """Bytes on the rank that has most of them."""
    return local_elements(of, bindings) * BYTES[of.dtype]


def whole_bytes(of: TensorType, bindings: Bindings) -> int:
    """Bytes of the tensor on all ranks together, copies not counted."""
    values = bindings.values
    return prod(extent.value(values) for extent in of.shape) * BYTES[of.dtype]


def work_of(program: Program, stage: Stage, bindings: Bindings) -> Work:
    """The work of a stage. Raises InputError for a dimension that the bindings do not know."""
    inside = {node.name: node for node in stage.nodes}
    written = {node.name: node for node in stored(program, stage)}
    phase = phases(program, stage.nodes, reduces_all)
    loads: dict[tuple[str, int, int], int] = {}
    kept = 0
    for node in stage.nodes:
        for name in node.reads:
            of, source = program.by_name[name].type, behind(program, name)
            if not of.shape:
                continue
            if source not in inside:
                loads[source, local_elements(of, bindings), phase[node.name]] = local_bytes(of, bindings)
            elif phase[node.name] > phase[source] and not reduces_all(inside[source]):
                loads[source, 0, phase[node.name]] = local_bytes(of, bindings)
                kept += 0 if source in written else local_bytes(of, bindings)
    movements = tuple(_movement(program, node, bindings) for node in stage.nodes if moves_data(node))
    gemms = [node for node in stage.nodes if node.op in ("MatMul", "Conv2d")]
    return Work(
        loaded=sum(loads.values()) + _tables(program, stage, bindings),
        stored=sum(local_bytes(node.type, bindings) for node in written.values()) + kept,
        products=tuple(product(program, node, bindings) for node in gemms),
        movements=movements,
        small=_small(program, stage, phase, bindings),
        computes=any(not moves_data(node) for node in stage.nodes),
        offset=max((node.type.group.offset for node in stage.nodes if node.op != "Send"), default=0),
    )


def _small(program: Program, stage: Stage, phase: Mapping[str, int], bindings: Bindings) -> tuple[Movement, ...]:
    """The partial results of reductions over slices: those of a phase are summed over the ranks in one message."""
    payload: dict[tuple[int, int], int] = {}
    for node in stage.nodes:
        if sums_slices(program, node):
            key = phase[node.name], node.type.group.offset
            payload[key] = payload.get(key, 0) + whole_bytes(node.type, bindings)
    return tuple(Movement("AllReduce", size, offset) for (_, offset), size in sorted(payload.items()))


def product(program: Program, node: Node, bindings: Bindings) -> Product:
    """What a MatMul or Conv2d multiplies on one rank."""
    x, w = (program.by_name[str(name)].type for name in node.inputs)
    held = local_elements(w, bindings)
    if node.op == "MatMul":
        depth = _local(w, 0, bindings)
        return Product(node.op, x.dtype, local_elements(x, bindings) // max(1, depth), depth, held // max(1, depth))
    columns = _local(w, 0, bindings)
    rows = local_elements(node.type, bindings) // max(1, columns)
    return Product(node.op, x.dtype, rows, held // max(1, columns), columns)


def _local(of: TensorType, at: int, bindings: Bindings) -> int:
    extent = of.shape[at].value(bindings.values)
    sliced = isinstance(of.layout, Sliced) and of.layout.dim == at
    return -(-extent // bindings.ranks) if sliced else extent


def _movement(program: Program, node: Node, bindings: Bindings) -> Movement:
    of = _first(program, node)
    if node.op in ("Send", "AllToAll"):
        return Movement(node.op, local_bytes(of, bindings), of.group.offset)
    return Movement(node.op, whole_bytes(of, bindings), of.group.offset)


def _first(program: Program, node: Node) -> TensorType:
    return program.by_name[str(node.inputs[0])].type


def _tables(program: Program, stage: Stage, bindings: Bindings) -> float:
    """What a kernel reads of the table of buckets, where a tensor is made up of several."""
    table = 0.0
    for node in stage.nodes:
        names = {name for extent in node.type.shape for name in extent.names}
        for name in names & bindings.parts.keys():
            sizes = bindings.parts[name]
            if len(sizes) > 1:
                share = local_elements(node.type, bindings) / max(1, sum(sizes))
                table = max(table, share * ENTRY_BYTES * sum(-(-size // LIMIT) for size in sizes))
    return table
