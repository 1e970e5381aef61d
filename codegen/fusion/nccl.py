"""Target (a): our kernels for what is computed, stock NCCL calls for what is communicated, in order on one stream.

Stock NCCL cannot run our computations. So a fused collective becomes its collectives and one kernel between them, an
overlap runs one stage after the other, and norms of slices become kernels around a small AllReduce; `notes` and the
file record this. Gathers are in place where the slice already lies in the whole tensor. Nothing waits for the host
between stages (CoCoNet, section 5.12).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from treadle.codegen.fusion import lower, matmul, pointwise, reductions, rows
from treadle.codegen.fusion.algorithms import named
from treadle.codegen.fusion.broadcast import EndTable
from treadle.codegen.fusion.context import Context
from treadle.codegen.fusion.expression import CPP, Scope, identifier
from treadle.codegen.fusion.kernel import Buffer, KernelText
from treadle.codegen.templates import template
from treadle.planner.errors import InputError
from treadle.planner.machine.dtypes import Dtype
from treadle.planner.passes.fusion import text
from treadle.planner.passes.fusion.layouts import FLAT, Block, Replicated, Sliced
from treadle.planner.passes.fusion.operations import operation
from treadle.planner.passes.fusion.program import Bindings, Kernel, Node, Program
from treadle.planner.passes.fusion.refusal import TypeRefusal
from treadle.planner.passes.fusion.stages import Stage, stages

NCCL_TYPES: dict[Dtype, str] = {
    "f16": "ncclFloat16",
    "bf16": "ncclBfloat16",
    "f32": "ncclFloat32",
    "f64": "ncclFloat64",
    "i32": "ncclInt32",
    "i64": "ncclInt64",
    "bool": "ncclUint8",
}
NCCL_OPS = {"+": "ncclSum", "max": "ncclMax", "min": "ncclMin"}


@dataclass(frozen=True)
class StreamOp:
    """What the host queues for one step: the launch of a kernel, or lines of NCCL calls. `about` is for readers."""

    about: str
    kernel: KernelText | None = None
    lines: tuple[str, ...] = ()
    condition: str = ""
    """Which ranks make the calls, in C++; all when empty."""


@dataclass(frozen=True)
class NcclSchedule:
    """A schedule as one file. `notes` say what stock NCCL could not carry; `buffers` are the tensors of a rank, in the
    order in which the file takes them."""

    text: str
    buffers: tuple[Buffer, ...]
    notes: tuple[str, ...]

    @property
    def texts(self) -> dict[str, str]:
        """The file and its headers, by file name."""
        return lower.with_headers({"schedule.cu": self.text})


def generate(program: Program, bindings: Bindings) -> NcclSchedule:
    """The file of a schedule. Raises TypeRefusal for slices that are no neighbouring elements, which NCCL does not
    scatter or gather."""
    apart, notes = taken_apart(program)
    buffers, places = lower.memory(apart, bindings)
    scope = Scope(apart, bindings, buffers, places)
    arena = lower.LINE * (1 + reductions.MOST_BLOCKS)
    calls: list[StreamOp] = []
    for stage in stages(apart):
        made = _calls(stage, Context(scope, named("ring"), arena), notes)
        calls += made
        arena += sum(-(-call.kernel.arena_bytes // lower.LINE) * lower.LINE for call in made if call.kernel)
    source = template("fusion/nccl.cu.j2").render(
        program=program.name,
        function=identifier(program.name),
        schedule=text.show(program).rstrip().splitlines(),
        digest=lower.digest_of(program, bindings),
        notes=notes,
        calls=calls,
        buffers=buffers,
        ranks=bindings.ranks,
        world=bindings.ranks * bindings.groups,
        groups=bindings.groups,
        arena_bytes=arena,
        products=any(call.kernel and "Gemm<" in call.kernel.text for call in calls),
    )
    return NcclSchedule(source, tuple(buffers), tuple(notes))


def taken_apart(program: Program) -> tuple[Program, list[str]]:
    """The program with its collectives outside of kernels and nothing overlapped, and notes on what that changes."""
    notes = [
        f"{overlap.name}: {', '.join(overlap.members)} run one after the other, not overlapped"
        for overlap in program.overlaps
    ]
    inner = {kernel.name: kernel for kernel in program.kernels}
    nodes = {node.name: node for node in program.nodes}
    outer = {member for kernel in program.kernels for member in kernel.members}
    kept: list[Kernel] = []
    for kernel in program.kernels:
        if kernel.policy == "ComputationFuse":
            if kernel.name not in outer:
                kept.append(kernel)
            continue
        members = _leaves(kernel, inner)
        computed = [
            name for name in members if operation(nodes[name].op).kind not in ("collective", "transfer", "view")
        ]
        moved = [nodes[name].op for name in members if operation(nodes[name].op).kind in ("collective", "transfer")]
        notes.append(f"{kernel.name}: {kernel.policy} is {', '.join(moved)} of NCCL, and a kernel for what is computed")
        if len(computed) > 1:
            kept.append(Kernel(f"{kernel.name}_computed", "ComputationFuse", tuple(computed)))
    return replace(program, kernels=tuple(kept), overlaps=()), notes


def _leaves(kernel: Kernel, kernels: dict[str, Kernel]) -> list[str]:
    """The operations of a kernel and of those inside it."""
    return [
        leaf for name in kernel.members for leaf in (_leaves(kernels[name], kernels) if name in kernels else [name])
    ]


def _calls(stage: Stage, context: Context, notes: list[str]) -> list[StreamOp]:
    if len(stage.nodes) == 1 and operation(stage.nodes[0].op).kind in ("collective", "transfer"):
        return [_collective(stage.nodes[0], context.scope)]
    if stage.kind == "convolution":
        raise InputError(f"{stage.name}: found a convolution, for which there is no kernel")
    if stage.kind == "matmul":
        kernel = matmul.emit(stage, context)
        return [StreamOp(kernel.about, kernel)]
    if not any(operation(node.op).kind == "reduction" for node in stage.nodes):
        kernel = pointwise.emit(stage, context)
        return [StreamOp(kernel.about, kernel)]
    if rows.fits(stage, context.scope):
        kernel = rows.emit(stage, context)
        return [StreamOp(kernel.about, kernel)]
    return _reductions(stage, context, notes)


def _reductions(stage: Stage, context: Context, notes: list[str]) -> list[StreamOp]:
    """Kernels that reduce, an AllReduce of the totals where ranks hold slices, and one that goes on from there."""
    scope, name = context.scope, identifier(stage.name)
    arena = reductions.Arena(context.arena)
    counter = arena.take(reductions.LINE)
    blocks = reductions.blocks_of(scope, stage)
    reduced: dict[str, int] = {}
    tables: list[EndTable] = []
    levels = reductions.levels_of(stage, scope, arena, blocks, reduced, tables)
    computed = [node for node in stage.nodes if operation(node.op).kind == "pointwise"]
    kept = pointwise.live_outs(scope.program, stage.nodes)
    finals = reductions.finals_of(stage, computed, scope, reduced, kept)
    calls: list[StreamOp] = []
    last = scope.program.by_name[stage.nodes[-1].name].type
    given = {
        "condition": pointwise.condition(scope, last), "ranks": scope.bindings.ranks, "counter": counter,
    }  # fmt: skip
    for number, level in enumerate(levels):
        of = ", ".join(each.name for each in level)
        about = f"{stage.name}: {of}, of this rank"
        source = template("fusion/nccl_totals.cu.j2").render(
            name=f"{name}_totals_{number}", about=about, level=level, tables=[] if number else tables,
            meetings=len(levels), meeting=number, **given,
        )  # fmt: skip
        size = arena.end - context.arena if not number else 0
        calls.append(StreamOp(about, KernelText(f"{name}_totals_{number}", source, blocks, "compute", about, size)))
        exchanged = [each for each in level if each.exchanged]
        if exchanged:
            notes.append(f"{stage.name}: the totals of {of} take an AllReduce of NCCL between kernels")
            lines = tuple(_all_reduced(each, scope) for each in exchanged)
            calls.append(StreamOp(f"{stage.name}: {of}, of all ranks", None, lines))
        about = f"{stage.name}: {of}"
        source = template("fusion/nccl_values.cu.j2").render(
            name=f"{name}_values_{number}", about=about, level=level, **given
        )
        calls.append(StreamOp(about, KernelText(f"{name}_values_{number}", source, 1, "compute", about)))
    about = f"{stage.name}: {', '.join(kept)}"
    source = template("fusion/nccl_finals.cu.j2").render(name=name, about=about, finals=finals, **given)
    return [*calls, StreamOp(about, KernelText(name, source, 0, "compute", about))]


def _all_reduced(each: reductions.Reduction, scope: Scope) -> str:
    node = scope.program.by_name[each.name]
    assert isinstance(node, Node)
    wide: dict[Dtype, Dtype] = {"f16": "f32", "bf16": "f32"}
    dtype = wide.get(node.type.dtype, node.type.dtype)
    op = NCCL_OPS[str(node.attribute("op", "+"))]
    at = f"session.arena + {each.totals}"
    return f"ncclAllReduce({at}, {at}, {each.count}, {NCCL_TYPES[dtype]}, {op}, group, stream)"


@dataclass(frozen=True)
class _Tensor:
    """A value in memory: its pointer as text; `first` is the pointer to this rank's part where it is a block of it."""

    pointer: str
    dtype: Dtype
    size: int

    @property
    def type(self) -> str:
        return NCCL_TYPES[self.dtype]


def _tensor(name: str, scope: Scope) -> _Tensor:
    index, buffer = scope.storage(name)
    of = scope.program.by_name[name].type
    return _Tensor(f"session.tensor<{CPP[buffer.dtype]}>({index})", of.dtype, prod(scope.extents(of.shape)))


def _collective(node: Node, scope: Scope) -> StreamOp:
    name = str(node.inputs[0])
    x, out = _tensor(name, scope), _tensor(node.name, scope)
    ranks, op = scope.bindings.ranks, NCCL_OPS.get(str(node.attribute("op")), "ncclSum")
    about = f"{node.name}: {node.op}({name})"
    root = node.attribute("root")
    lines: tuple[str, ...]
    match node.op:
        case "AllReduce":
            lines = (f"ncclAllReduce({x.pointer}, {out.pointer}, {x.size}, {x.type}, {op}, group, stream)",)
        case "Reduce":
            lines = (f"ncclReduce({x.pointer}, {out.pointer}, {x.size}, {x.type}, {op}, {root}, group, stream)",)
        case "Broadcast":
            lines = (f"ncclBroadcast({x.pointer}, {out.pointer}, {x.size}, {x.type}, {root}, group, stream)",)
        case "ReduceScatter":
            part = _part(node.name, node.type.layout, scope)
            lines = _scattered(x, out, part, ranks, op)
        case "AllGather":
            part = _part(node.name, scope.program.by_name[name].type.layout, scope)
            inside = not isinstance(scope.storage(name)[1].layout, Sliced)
            if inside and scope.storage(name)[0] == scope.storage(node.name)[0]:
                about += ", in place"
            lines = _gathered(x, out, part, ranks, inside)
        case "AllToAll":
            lines = _exchanged(x, out, ranks)
        case "Send":
            lines = _sent(node, x, out, scope)
        case _:
            raise TypeRefusal(node.name, "5.12", f"found {node.op}, expected a collective that NCCL has")
    return StreamOp(about, None, lines, "" if node.op == "Send" else _having(node, scope))


def _having(node: Node, scope: Scope) -> str:
    """The groups that a collective runs on."""
    everywhere = replace(node.type, layout=Replicated())
    return pointwise.condition(scope, everywhere).replace("rank /", "session.rank /")


def _part(name: str, layout: object, scope: Scope) -> int:
    """Elements of the part of each rank, the last ones excepted. Raises TypeRefusal for slices that are no blocks."""
    of = scope.program.by_name[name].type
    extents, ranks = scope.extents(of.shape), scope.bindings.ranks
    if not isinstance(layout, Sliced) or not isinstance(layout.map, Block):
        raise TypeRefusal(
            name, "5.4", "found the tiles of a ring, expected blocks: NCCL scatters and gathers only these"
        )
    if layout.dim == FLAT:
        return -(-prod(extents) // ranks)
    if prod(extents[: layout.dim]) != 1:
        raise TypeRefusal(name, "3.1", f"found slices along dimension {layout.dim}, expected neighbouring elements")
    return -(-extents[layout.dim] // ranks) * prod(extents[layout.dim + 1 :])


def _scattered(x: _Tensor, out: _Tensor, part: int, ranks: int, op: str) -> tuple[str, ...]:
    if part * ranks == x.size:
        return (f"ncclReduceScatter({x.pointer}, {out.pointer}, {part}, {x.type}, {op}, group, stream)",)
    return _grouped(
        f"ncclReduce({x.pointer} + {begin}, {out.pointer}, {end - begin}, {x.type}, {op}, {rank}, group, stream)"
        for rank, (begin, end) in enumerate(_parts(x.size, part, ranks))
        if begin < end
    )


def _gathered(x: _Tensor, out: _Tensor, part: int, ranks: int, inside: bool) -> tuple[str, ...]:
    """`inside`: the slice lies at its place in a tensor of full size."""
    mine = f"{x.pointer} + session.place * int64_t({part})" if inside else x.pointer
    if part * ranks == out.size:
        return (f"ncclAllGather({mine}, {out.pointer}, {part}, {x.type}, group, stream)",)
    return _grouped(
        f"ncclBroadcast({mine}, {out.pointer} + {begin}, {end - begin}, {x.type}, {rank}, group, stream)"
        for rank, (begin, end) in enumerate(_parts(out.size, part, ranks))
        if begin < end
    )


def _exchanged(x: _Tensor, out: _Tensor, ranks: int) -> tuple[str, ...]:
    part = x.size // ranks
    return _grouped(
        line
        for peer in range(ranks)
        for line in (
            f"ncclSend({x.pointer} + {peer * part}, {part}, {x.type}, {peer}, group, stream)",
            f"ncclRecv({out.pointer} + {peer * part}, {part}, {x.type}, {peer}, group, stream)",
        )
    )


def _sent(node: Node, x: _Tensor, out: _Tensor, scope: Scope) -> tuple[str, ...]:
    """Every rank of a group sends to its like in the next one; what is sliced goes as each rank's part."""
    ranks, world = scope.bindings.ranks, scope.bindings.ranks * scope.bindings.groups
    size = str(x.size)
    if isinstance(node.type.layout, Sliced):
        size = f"session.elements({x.size}, {_part(node.name, node.type.layout, scope)})"
    sends, receives = f"session.rank + {ranks} < {world}", f"session.rank >= {ranks}"
    sent = f"ncclSend({x.pointer}, {size}, {x.type}, session.rank + {ranks}, world, stream)"
    received = f"ncclRecv({out.pointer}, {size}, {x.type}, session.rank - {ranks}, world, stream)"
    return _grouped([f"{sends} ? {sent} : ncclSuccess", f"{receives} ? {received} : ncclSuccess"])


def _parts(size: int, part: int, ranks: int) -> list[tuple[int, int]]:
    return [(min(size, rank * part), min(size, (rank + 1) * part)) for rank in range(ranks)]


def _grouped(lines: Iterable[str]) -> tuple[str, ...]:
    return ("ncclGroupStart()", *lines, "ncclGroupEnd()")
