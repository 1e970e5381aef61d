"""Kernels of collectives, plain or with a computation fused in, on any algorithm (CoCoNet, sections 3.5 and 5.3).

A stage becomes a collective program of chunks, the map from chunks to elements, and the computation as a functor that
runs at the finishing step of each chunk. RS, computation and AG are one allreduce program; a computation before an AG,
Broadcast, AllToAll or Send runs where its owner first takes a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from codegen.cuda_tables import READ, RECEIVE, SEND
from codegen.fusion.context import Context
from codegen.fusion.expression import CPP, Functor, elements_per_pack, functor, identifier
from codegen.fusion.kernel import KernelText
from codegen.fusion.moves import COMPUTE, Lane, Move, Moves, moves_of
from codegen.fusion.pointwise import live_outs
from codegen.program import Program, RankProgram, Step, Threadblock
from codegen.templates import template
from planner.errors import InputError
from planner.fusion.layouts import FLAT, RingTile, Sliced
from planner.fusion.operations import operation
from planner.fusion.program import BYTES, Dtype, Node
from planner.fusion.program import Program as FusedProgram
from planner.fusion.refusal import TypeRefusal
from planner.fusion.stages import Stage

PROGRAMS = {
    "AllReduce": "allreduce",
    "ReduceScatter": "reducescatter",
    "Reduce": "reduce",
    "AllGather": "allgather",
    "Broadcast": "broadcast",
    "AllToAll": "alltoall",
    "Send": "send",
}
"""The collective program of each operation."""
JOINS = {"+": "Plus", "min": "Least", "max": "Greatest"}
SPACES = {None: 0, "input": 1, "output": 2, "stage": 3}
LINE = 128
STATE_BYTES = 3 * LINE


@dataclass(frozen=True)
class Anatomy:
    """A stage taken apart: `first` reduces, `last` hands out, `members` are computed between, after `rows` have been
    read in the order of an index."""

    first: Node | None
    last: Node | None
    members: tuple[Node, ...]
    permute: Node | None

    @property
    def collective(self) -> str:
        if self.first is not None and self.last is not None:
            return "allreduce"
        return PROGRAMS[(self.first or self.last).op]  # type: ignore[union-attr]

    @property
    def sends(self) -> Node:
        """The node whose operand goes in."""
        return self.first or self.last  # type: ignore[return-value]


@dataclass(frozen=True)
class Chunking:
    """How chunks lie in the tensor: `part` elements of each owner in `pieces` chunks of `width`, of which an iteration
    moves `longest`; or the tiles of a ring."""

    size: int
    pieces: int
    part: int
    width: int
    longest: int
    tiles: RingTile | None
    ranks: int

    @property
    def iterations(self) -> int:
        if self.tiles is not None:
            return -(-self.size // (self.ranks * self.tiles.channels * self.tiles.capacity))
        return -(-self.width // self.longest) if self.size else 0

    def chunk(self, iteration: int, number: int) -> tuple[int, int, int]:
        """Where a chunk begins in the tensor and in its owner's slice, and its elements: `of` in C++."""
        if self.tiles is None:
            local = number % self.pieces * self.width + iteration * self.longest
            begin = number // self.pieces * self.part + local
            count = min(self.longest, self.width - iteration * self.longest, self.part - local, self.size - begin)
            return begin, local, max(0, count)
        tiles, share = self.tiles, self.tiles.channels * self.tiles.capacity
        base = iteration * self.ranks * share
        count = (
            -(-min(tiles.capacity, -(-(self.size - base) // (self.ranks * tiles.channels))) // tiles.align)
            * tiles.align
        )
        owner, channel = divmod(number, tiles.channels)
        place = owner * tiles.channels + channel if tiles.rank_major else channel * self.ranks + owner
        begin = base + place * count
        return begin, iteration * share + channel * count, max(0, min(count, self.size - begin))

    @property
    def type(self) -> str:
        if self.tiles is not None:
            t = self.tiles
            order = str(t.rank_major).lower()
            return f"RingChunks<{self.size}, {t.channels}, {t.capacity}, {t.align}, {order}, {self.ranks}>"
        return f"BlockChunks<{self.size}, {self.part}, {self.pieces}, {self.width}, {self.longest if self.size else 1}>"


@dataclass(frozen=True)
class Plan:
    """A stage as it will be generated: its parts, the computation, the moves of its algorithm and where chunks lie."""

    stage: Stage
    anatomy: Anatomy
    made: Functor | None
    program: Program
    moves: Moves
    chunking: Chunking
    dtype: Dtype
    pack: int


def emit(stage: Stage, context: Context) -> KernelText:
    """The kernel of a collective stage. Raises as `plan` does."""
    return text(plan(stage, context), context)


def plan(stage: Stage, context: Context, made: Functor | None = None) -> Plan:
    """How a collective stage runs.

    Raises TypeRefusal where slices are no runs of neighbouring elements, where the algorithm does not finish each
    rank's slice at that rank, though the computation reads or keeps slices (CoCoNet, section 5.3), or finishes a chunk
    several times; InputError for extents that AllToAll cannot divide.
    """
    anatomy = anatomy_of(stage)
    scope = context.scope
    tensor = scope.program.type_of(anatomy.sends.inputs[0])
    assert tensor is not None
    made = made or _functor(stage, anatomy, context)
    sliced = _slice_of(anatomy, scope.program.by_name)
    tiles = sliced.map if sliced is not None and isinstance(sliced.map, RingTile) else None
    channels = tiles.channels if tiles is not None else context.channels
    program = _program(anatomy, context, channels)
    try:
        moves = moves_of(program, computes=made is not None)
    except InputError as error:
        if made is None:
            raise
        raise TypeRefusal(stage.name, "5.3", str(error)) from error
    pack = _pack(made, tensor.dtype, context.protocol)
    extents = scope.extents(tensor.shape)
    chunking = _chunking(stage, anatomy, extents, sliced, tiles, moves, context, pack)
    if made is not None:
        _check_owners(stage, made, moves, chunking, context)
    return Plan(stage, anatomy, made, program, moves, chunking, tensor.dtype, pack)


def anatomy_of(stage: Stage) -> Anatomy:
    """Raises TypeRefusal for collectives that no one kernel holds."""
    collectives = [node for node in stage.nodes if operation(node.op).kind in ("collective", "transfer")]
    permute = next((node for node in stage.nodes if node.op == "Permute"), None)
    members = tuple(node for node in stage.nodes if operation(node.op).kind == "pointwise")
    others = [node for node in stage.nodes if node not in (*collectives, *members, permute)]
    reducing = [node for node in collectives if node.op in ("AllReduce", "ReduceScatter", "Reduce")]
    ending = [node for node in collectives if node not in reducing]
    both = bool(reducing and ending)
    fits = (
        len(reducing) <= 1
        and len(ending) <= 1
        and (not both or (reducing[0].op, ending[0].op) == ("ReduceScatter", "AllGather"))
    )
    if others or not collectives or not fits or (permute is not None and reducing):
        names = ", ".join(node.op for node in stage.nodes)
        raise TypeRefusal(
            stage.name,
            "5.3",
            f"found {names} in one kernel, expected one collective, or RS and AG, and pointwise operations",
        )
    return Anatomy(reducing[0] if reducing else None, ending[0] if ending else None, members, permute)


def handed_out(program: FusedProgram, nodes: Sequence[Node], last: Node | None) -> tuple[str | None, list[str]]:
    """The value that goes to the collective `last`, and those that a kernel of `nodes` keeps besides in memory."""
    result = str(last.inputs[0]) if last is not None else None

    def kept(name: str) -> bool:
        others = any(reader is not last for reader in program.readers[name])
        return last is None or (name != last.name and (name != result or others or name in program.outputs))

    return result, [name for name in live_outs(program, nodes) if kept(name)]


def _functor(stage: Stage, anatomy: Anatomy, context: Context) -> Functor | None:
    if not anatomy.members:
        return None
    result, kept = handed_out(context.scope.program, stage.nodes, anatomy.last)
    value = anatomy.first or anatomy.permute
    name = f"{identifier(stage.name)}_elements"
    return functor(
        context.scope, name, anatomy.members, value=value.name if value else None, result=result, stores=kept
    )


def _slice_of(anatomy: Anatomy, by_name: Any) -> Sliced | None:
    """The slices that the ranks own."""
    if anatomy.first is not None and isinstance(anatomy.first.type.layout, Sliced):
        return anatomy.first.type.layout
    if anatomy.last is not None and anatomy.last.op in ("AllGather", "Send"):
        layout = by_name[str(anatomy.last.inputs[0])].type.layout
        return layout if isinstance(layout, Sliced) else None
    return None


def _program(anatomy: Anatomy, context: Context, channels: int) -> Program:
    ranks = context.scope.bindings.ranks
    collective = anatomy.collective
    if collective == "send":
        last = anatomy.last
        assert last is not None
        sliced = isinstance(last.type.layout, Sliced)
        return send_program(ranks, context.scope.bindings.groups, channels, sliced, context.protocol)
    root = anatomy.sends.attribute("root")
    made = context.algorithm(
        collective, ranks, channels=channels, root=int(root) if root is not None else None, protocol=context.protocol
    )
    return made


def send_program(ranks: int, groups: int, channels: int, sliced: bool, protocol: str) -> Program:
    """Every rank of a group sends to its like in the next one: all its chunks, or those of its slice."""
    programs = []
    for group in range(groups):
        for rank in range(ranks):
            blocks = []
            first = rank * channels if sliced else 0
            for channel in range(channels):
                chunk = first + channel
                if group < groups - 1:
                    step = Step("s", ("i", chunk), ("o", chunk))
                    blocks.append(Threadblock((group + 1) * ranks + rank, None, channel, (step,)))
                if group > 0:
                    step = Step("r", ("i", chunk), ("o", chunk))
                    blocks.append(Threadblock(None, (group - 1) * ranks + rank, channel, (step,)))
            chunks = channels * (ranks if sliced else 1)
            programs.append(RankProgram(chunks, chunks, 0, tuple(blocks)))
    loop = channels * (ranks if sliced else 1)
    return Program(f"treadle_send_{ranks}", "send", tuple(programs), loop, channels, protocol)


def _pack(made: Functor | None, dtype: Dtype, protocol: str) -> int:
    """Elements at once: the widest type fills 16 bytes, 8 under LL (CoCoNet, section 5.5)."""
    pack = made.pack if made is not None else elements_per_pack([dtype])
    return max(1, pack // 2) if protocol == "LL" else pack


def _chunking(
    stage: Stage, anatomy: Anatomy, extents: tuple[int, ...], sliced: Sliced | None, tiles: RingTile | None,
    moves: Moves, context: Context, pack: int,
) -> Chunking:  # fmt: skip
    ranks, size = context.scope.bindings.ranks, prod(extents)
    chunks = moves.chunks
    if tiles is not None:
        if chunks != ranks * tiles.channels or not regular(moves, ranks):
            raise TypeRefusal(
                stage.name,
                "5.4",
                "found an algorithm without one owner of each chunk, expected a ring's for ring tiles",
            )
        longest = -(-tiles.capacity // tiles.align) * tiles.align
        return Chunking(size, tiles.channels, 0, 0, longest, tiles, ranks)
    owned = sliced is not None or anatomy.collective in ("reducescatter", "allgather")
    if sliced is not None and sliced.dim != FLAT and prod(extents[: sliced.dim]) != 1:
        raise TypeRefusal(
            stage.name,
            "3.1",
            f"found slices along dimension {sliced.dim}, expected runs of neighbouring elements; slice dimension 0",
        )
    if anatomy.collective == "alltoall":
        if extents[0] % ranks:
            raise InputError(f"{stage.name}: found {extents[0]} rows for {ranks} ranks, expected as many for each")
        part, pieces = size // ranks, chunks // ranks
    elif (
        chunks % ranks == 0
        and (owned or anatomy.collective == "allreduce")
        and (anatomy.collective == "send" or regular(moves, ranks))
    ):
        part, pieces = _part(sliced, extents, ranks), chunks // ranks
    else:
        part, pieces = size, chunks
    least = -(-part // pieces)
    grain = pack if least >= 16 * pack else 1
    width = -(-least // grain) * grain
    longest = max(grain, context.slot_bytes // max(BYTES[anatomy.sends.type.dtype], 1) // grain * grain)
    return Chunking(size, pieces, part, max(1, width), max(1, min(longest, width)), None, ranks)


def _part(sliced: Sliced | None, extents: tuple[int, ...], ranks: int) -> int:
    """The most elements that a rank owns."""
    if sliced is None or sliced.dim == FLAT:
        return -(-prod(extents) // ranks)
    return -(-extents[sliced.dim] // ranks) * prod(extents[sliced.dim + 1 :])


def regular(moves: Moves, ranks: int) -> bool:
    """Whether rank r finishes the r-th part of the chunks."""
    pieces = moves.chunks // ranks
    return pieces > 0 and all(owner == chunk // pieces for chunk, owner in moves.owners.items())


def _check_owners(stage: Stage, made: Functor, moves: Moves, chunking: Chunking, context: Context) -> None:
    if chunking.pieces * chunking.ranks == moves.chunks or chunking.tiles is not None:
        return
    for name in (*made.loads, *made.stores):
        if isinstance(context.scope.storage(name)[1].layout, Sliced):
            raise TypeRefusal(stage.name, "5.3", f"found {name} in slices, expected tensors that every rank has whole: "
                              "the algorithm finishes chunks at other ranks than their owners")  # fmt: skip


# Text.


def text(plan: Plan, context: Context, *, ready: str = "Always", done: str = "Always") -> KernelText:
    """The kernel of a plan. `ready` and `done` are types of treadle_overlap.h: what it waits for and whom it tells."""
    made = parts(plan, context, ready=ready, done=done)
    name = identifier(plan.stage.name)
    source = template("fusion/collective.cu.j2").render(parts=made.text, name=name)
    return KernelText(name, source, made.blocks, "communication", about(plan, context), made.arena_bytes)


def about(plan: Plan, context: Context) -> str:
    """A line for readers."""
    return f"{plan.stage.name}: {', '.join(plan.stage.named)}; {plan.program.name}, {context.protocol}"


@dataclass(frozen=True)
class Parts:
    """The types and tables that `Collective<NAME_about>::run` needs."""

    text: str
    blocks: int
    arena_bytes: int


def parts(
    plan: Plan, context: Context, *, ready: str = "Always", done: str = "Always", output_at: int | None = None
) -> Parts:
    """A plan without its kernel. With `output_at` the rank's slice of the output lies there in the arena."""
    scope, stage, anatomy, made = context.scope, plan.stage, plan.anatomy, plan.made
    program, moves, chunking, dtype, pack = plan.program, plan.moves, plan.chunking, plan.dtype, plan.pack
    name = identifier(stage.name)
    out: Dtype | None = made.result if made is not None else dtype
    blocks = max((len(lanes) for lanes in moves.lanes), default=1)
    entries, rows, areas = _tables(anatomy, moves, context, takes=made is None or made.value is not None)
    widest = max(BYTES[dtype], BYTES[out] if out else 1)
    wire = max(_wire(BYTES[each], pack, chunking.longest, context.protocol) for each in (dtype, out) if each)
    most = max((move.count for lanes in moves.lanes for lane in lanes for move in lane.moves), default=1) or 1
    chunk_bytes = _lines(wire)
    stage_bytes = _lines(chunking.iterations * chunking.longest * widest)
    inboxes = context.arena + blocks * STATE_BYTES
    staged = inboxes + areas * moves.slots * most * chunk_bytes
    input_buffer = _input(anatomy, made, scope)
    ends = anatomy.last or anatomy.first
    stored = output_at is None and ends is not None and (anatomy.last is not None or made is None)
    output_buffer = scope.storage(ends.name) if stored and ends is not None else None
    index = scope.storage(str(anatomy.permute.inputs[1])) if anatomy.permute else None
    source = template("fusion/collective_parts.cu.j2").render(
        functor=made.text if made is not None else "",
        about=about(plan, context),
        name=name,
        input_type=CPP[dtype],
        output_type=CPP[out] if out else "Nothing",
        finish=made.name if made is not None else "Unchanged",
        join=JOINS[str(anatomy.first.attribute("op", "+"))] if anatomy.first else "Plus",
        slots_type=f"{context.protocol}Slots",
        chunks_type=chunking.type,
        chunks=moves.chunks,
        ready=ready,
        done=done,
        index_type=CPP[index[1].dtype] if index else "int32_t",
        computes=str(made is not None),
        takes=str(made is not None and made.value is not None),
        reduces=str(anatomy.first is not None),
        input_sliced=str(input_buffer is not None and isinstance(input_buffer[1].layout, Sliced)),
        output_sliced=str(output_buffer is not None and isinstance(output_buffer[1].layout, Sliced)),
        pack=pack,
        ranks=scope.bindings.ranks,
        blocks=blocks,
        stride=1 + max((len(lane.moves) + sum(len(m.after) for m in lane.moves) for lanes in moves.lanes for lane in lanes), default=0),
        slots=moves.slots,
        input=input_buffer[0] if input_buffer else -1,
        output=output_buffer[0] if output_buffer else -1,
        output_at=-1 if output_at is None else output_at,
        index=index[0] if index else -1,
        row=prod(scope.extents(anatomy.permute.type.shape)[1:]) if anatomy.permute else 1,
        lanes=context.arena,
        inboxes=inboxes,
        staged=staged,
        chunk_bytes=chunk_bytes,
        slot_bytes=most * chunk_bytes,
        stage_bytes=stage_bytes,
        entries=entries,
        moves=rows,
    )  # fmt: skip
    return Parts(source, blocks, staged + moves.stages * stage_bytes - context.arena)


def _input(anatomy: Anatomy, made: Functor | None, scope: Any) -> Any:
    if anatomy.permute is not None:
        return scope.storage(str(anatomy.permute.inputs[0]))
    if made is not None and made.value is None:
        return None
    return scope.storage(str(anatomy.sends.inputs[0]))


def _wire(size: int, pack: int, count: int, protocol: str) -> int:
    """Bytes of `count` elements of `size` bytes in a slot; `bytes` of treadle_collective.h, for any smaller count too."""
    if protocol == "Simple":
        return size * count
    return 8 * (-(-count // pack) * -(-size * pack // 4) + (pack - 1) * -(-size // 4))


def _lines(size: int) -> int:
    return -(-size // LINE) * LINE


def _tables(
    anatomy: Anatomy, moves: Moves, context: Context, *, takes: bool
) -> tuple[list[tuple[int, ...]], list[tuple[str, tuple[int, ...]]], int]:
    """Entries by world rank and block; the moves, those of all groups once; connections into a rank at most."""
    bindings = context.scope.bindings
    ranks, groups = bindings.ranks, bindings.groups
    blocks = max((len(lanes) for lanes in moves.lanes), default=1)
    senders, receivers, areas = _ends(moves)
    rows: list[tuple[str, tuple[int, ...]]] = []
    plans: list[list[tuple[int, ...]]] = []
    for rank, lanes in enumerate(moves.lanes):
        places = {move: (number, place) for number, lane in enumerate(lanes) for place, move in _numbered(lane)}
        awaited = {before for lane in lanes for move in lane.moves for before in move.after}
        plans.append([])
        for number, lane in enumerate(lanes):
            listed = list(_rows(lane, places, awaited, takes))
            label = (
                f"rank {rank}"
                + (f", from {lane.recv}" if lane.recv is not None else "")
                + (f", to {lane.send}" if lane.send is not None else "")
            )
            counts = tuple(sum(bool(m.flow & bit) for m in lane.moves) for bit in (RECEIVE, SEND))
            received = (
                (lane.recv, *senders[lane.recv, rank, lane.channel], areas[lane.recv, rank, lane.channel])
                if counts[0]
                else (-1, -1, -1)
            )
            sent = (
                (lane.send, *receivers[rank, lane.send, lane.channel], areas[rank, lane.send, lane.channel])
                if counts[1]
                else (-1, -1, -1)
            )
            plans[-1].append((len(rows), len(listed), *counts, *received, *sent))  # type: ignore[arg-type]
            rows += [(label if not place else "", row) for place, row in enumerate(listed)]
    entries: list[tuple[int, ...]] = []
    idle = (0, 0, 0, 0, -1, -1, -1, -1, -1, -1)
    offset = max((value.type.group.offset for value in context.scope.program.by_name.values()), default=0)
    first = anatomy.sends.type.group.offset if anatomy.collective != "send" else 0
    for world in range(ranks * groups):
        group, rank = divmod(world, ranks)
        if anatomy.collective == "send":
            plan, base = plans[world], 0
        elif first <= group <= first + groups - 1 - offset:
            plan, base = plans[rank], group * ranks
        else:
            plan, base = [], 0
        for entry in plan:
            entries.append(tuple(x + base if place in (4, 7) and x >= 0 else x for place, x in enumerate(entry)))
        entries += [idle] * (blocks - len(plan))
    most = max((sum(1 for key in areas if key[1] == rank) for rank in range(len(moves.lanes))), default=0)
    return entries, rows or [("", (0,) * 12)], most


def _numbered(lane: Lane) -> Iterator[tuple[int, Move]]:
    """The moves of a lane with their places; a move that waits for several others has others before it."""
    place = 0
    for move in lane.moves:
        place += max(0, len(move.after) - 1)
        yield place, move
        place += 1


def _rows(
    lane: Lane, places: dict[Move, tuple[int, int]], awaited: set[Move], takes: bool
) -> Iterator[tuple[int, ...]]:
    for move in lane.moves:
        waits = [places[before] for before in move.after]
        for wait in waits[:-1]:
            yield (0, 0, 0, 0, 0, 0, 0, 0, 0, *wait, 0)
        flow = move.flow if takes or not move.flow & COMPUTE else move.flow & ~READ
        operands = [
            x
            for operand in (move.source, move.addend, move.target)
            for x in ((SPACES[operand[0]], operand[1]) if operand else (0, 0))
        ]
        yield (
            flow,
            max(0, move.chunk),
            move.count,
            *operands,
            *(waits[-1] if waits else (-1, -1)),
            int(move in awaited),
        )


def _ends(moves: Moves) -> tuple[dict[Any, tuple[int]], dict[Any, tuple[int]], dict[Any, int]]:
    """By connection (src, dst, channel): the block that sends, the one that receives, its number among those of dst."""
    senders, receivers = {}, {}
    for rank, lanes in enumerate(moves.lanes):
        for number, lane in enumerate(lanes):
            if any(move.flow & SEND for move in lane.moves):
                senders[rank, lane.send, lane.channel] = (number,)
            if any(move.flow & RECEIVE for move in lane.moves):
                receivers[lane.recv, rank, lane.channel] = (number,)
    areas: dict[Any, int] = {}
    for key in sorted(receivers):
        areas[key] = sum(1 for other in areas if other[1] == key[1])
    return senders, receivers, areas
