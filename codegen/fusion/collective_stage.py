"""How a collective stage runs: its parts, the algorithm's steps, the map from chunks to elements, the computation.

RS, computation and AG are one allreduce program; a computation before an AG, Broadcast, AllToAll or Send runs where the
owner of a chunk first takes it (CoCoNet, sections 3.5 and 5.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from treadle.codegen.collective.program import BlockStep, CollectiveProgram, RankProgram, Threadblock
from treadle.codegen.fusion.chunking import Chunking, Columns, chunking_of, in_columns, regular
from treadle.codegen.fusion.context import Context
from treadle.codegen.fusion.expression import Functor, elements_per_pack, functor, identifier
from treadle.codegen.fusion.pointwise import live_outs
from treadle.codegen.fusion.typed import TypedProgram, typed_program
from treadle.planner.errors import InputError
from treadle.planner.machine.dtypes import BYTES, Dtype
from treadle.planner.passes.fusion.anatomy import Anatomy, anatomy_of
from treadle.planner.passes.fusion.layouts import Replicated, RingTile, Sliced
from treadle.planner.passes.fusion.program import Input, Node
from treadle.planner.passes.fusion.program import Program as FusedProgram
from treadle.planner.passes.fusion.refusal import TypeRefusal
from treadle.planner.passes.fusion.stages import Stage

MOST_CHANNELS = 32
"""As the machine of a plan has at most (docs/fusion.md)."""


@dataclass(frozen=True)
class CollectiveStage:
    """A stage as it will be generated: its parts, the computation, the steps of its algorithm and where chunks lie."""

    stage: Stage
    anatomy: Anatomy
    made: Functor | None
    program: CollectiveProgram
    typed: TypedProgram
    chunking: Chunking | Columns
    dtype: Dtype
    pack: int


def collective_stage(stage: Stage, context: Context, made: Functor | None = None) -> CollectiveStage:
    """How a collective stage runs.

    Raises TypeRefusal where the algorithm does not finish each rank's slice at that rank, though the computation reads
    or keeps slices (CoCoNet, section 5.3), or finishes a chunk several times; InputError for extents that AllToAll
    cannot divide.
    """
    anatomy = anatomy_of(stage)
    scope, ranks = context.scope, context.scope.bindings.ranks
    tensor = scope.program.type_of(anatomy.sends.inputs[0])
    assert tensor is not None
    made = made or _functor(stage, anatomy, context)
    sliced = _slice_of(anatomy, scope.program.by_name)
    tiles = sliced.map if sliced is not None and isinstance(sliced.map, RingTile) else None
    channels = tiles.channels if tiles is not None else context.channels
    if channels > MOST_CHANNELS:
        raise InputError(f"{stage.name}: found {channels} channels, expected at most {MOST_CHANNELS}")
    program = _program(anatomy, context, channels)
    try:
        typed = typed_program(program, computes=made is not None)
    except InputError as error:
        if made is None:
            raise
        raise TypeRefusal(stage.name, "5.3", str(error)) from error
    pack = _pack(made, tensor.dtype, context.protocol)
    extents = scope.extents(tensor.shape)
    pack = gcd(pack, *(in_columns(sliced, extents, ranks) or (pack,))[-2:])
    widest = max(BYTES[each] for each in (tensor.dtype, made.result if made else None) if each)
    most = context.slot_bytes // widest
    shape = None if anatomy.permutes else context.chunk
    chunking = chunking_of(
        stage.name, anatomy.collective, typed, extents, ranks, sliced, grain=pack, most=most, shape=shape
    )
    if made is not None and anatomy.collective not in ("alltoall", "send") and not regular(typed, ranks):
        _check_operands(stage, made, context)
    return CollectiveStage(stage, anatomy, made, program, typed, chunking, tensor.dtype, pack)


def handed_out(program: FusedProgram, nodes: Sequence[Node], last: Node | None) -> tuple[str | None, list[str]]:
    """The value that goes to the collective `last`, and those that a kernel of `nodes` keeps besides in memory."""
    result = str(last.inputs[0]) if last is not None else None

    def kept(name: str) -> bool:
        others = any(reader is not last for reader in program.readers[name])
        stays = others or name in program.outputs or _overwrites(program, name, last)
        return last is None or (name != last.name and (name != result or stays))

    return result, [name for name in live_outs(program, nodes) if kept(name)]


def _overwrites(program: FusedProgram, name: str, last: Node | None) -> bool:
    """Whether a value is an Update of a tensor that the collective `last` does not make whole again."""
    made = program.by_name[name]
    if not isinstance(made, Node) or made.op != "Update":
        return False
    whole = last is not None and last.op in ("AllGather", "Broadcast")
    return not (whole and isinstance(program.by_name[str(made.inputs[0])].type.layout, Replicated))


def _functor(stage: Stage, anatomy: Anatomy, context: Context) -> Functor | None:
    if not anatomy.members:
        return None
    result, kept = handed_out(context.scope.program, stage.nodes, anatomy.last)
    name = f"{identifier(stage.name)}_elements"
    return functor(
        context.scope,
        name,
        anatomy.members,
        value=anatomy.first.name if anatomy.first else None,
        result=result,
        stores=kept,
    )


def _slice_of(anatomy: Anatomy, by_name: Mapping[str, Input | Node]) -> Sliced | None:
    """The slices that the ranks own."""
    if anatomy.first is not None and isinstance(anatomy.first.type.layout, Sliced):
        return anatomy.first.type.layout
    if anatomy.last is not None and anatomy.last.op in ("AllGather", "Send"):
        layout = by_name[str(anatomy.last.inputs[0])].type.layout
        return layout if isinstance(layout, Sliced) else None
    return None


def _program(anatomy: Anatomy, context: Context, channels: int) -> CollectiveProgram:
    ranks = context.scope.bindings.ranks
    collective = anatomy.collective
    if collective == "send":
        last = anatomy.last
        assert last is not None
        sliced = isinstance(last.type.layout, Sliced)
        return send_program(ranks, context.scope.bindings.groups, channels, sliced, context.protocol)
    root = anatomy.sends.attribute("root")
    return context.algorithm(
        collective, ranks, channels=channels, root=int(root) if root is not None else None, protocol=context.protocol
    )


def send_program(ranks: int, groups: int, channels: int, sliced: bool, protocol: str) -> CollectiveProgram:
    """Every rank of a group sends to its like in the next one: all its chunks, or those of its slice."""
    programs = []
    for group in range(groups):
        for rank in range(ranks):
            blocks = []
            first = rank * channels if sliced else 0
            for channel in range(channels):
                chunk = first + channel
                if group < groups - 1:
                    step = BlockStep("s", ("i", chunk), ("o", chunk))
                    blocks.append(Threadblock((group + 1) * ranks + rank, None, channel, (step,)))
                if group > 0:
                    step = BlockStep("r", ("i", chunk), ("o", chunk))
                    blocks.append(Threadblock(None, (group - 1) * ranks + rank, channel, (step,)))
            chunks = channels * (ranks if sliced else 1)
            programs.append(RankProgram(chunks, chunks, 0, tuple(blocks)))
    loop = channels * (ranks if sliced else 1)
    return CollectiveProgram(f"treadle_send_{ranks}", "send", tuple(programs), loop, channels, protocol)


def _pack(made: Functor | None, dtype: Dtype, protocol: str) -> int:
    """Elements at once: the widest type fills 16 bytes, 8 under LL (CoCoNet, section 5.5)."""
    pack = made.pack if made is not None else elements_per_pack([dtype])
    return max(1, pack // 2) if protocol == "LL" else pack


def _check_operands(stage: Stage, made: Functor, context: Context) -> None:
    """The computation runs on chunks at ranks that do not own them."""
    for name in (*made.loads, *made.stores):
        if isinstance(context.scope.storage(name)[1].layout, Sliced):
            raise TypeRefusal(
                stage.name,
                "5.3",
                f"found {name} in slices, expected tensors that every rank has whole: the algorithm finishes chunks at "
                "other ranks than their owners",
            )
