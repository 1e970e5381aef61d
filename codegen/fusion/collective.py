"""Kernels of collectives, plain or with a computation fused in, as types and tables of C++.

The tables hold the typed steps of the collective (treadle.codegen.fusion.typed); templates/fusion/treadle_collective.h
executes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from treadle.codegen.collective.cuda.tables import READ, RECEIVE, SEND
from treadle.codegen.fusion.collective_stage import CollectiveStage, collective_stage
from treadle.codegen.fusion.context import Context
from treadle.codegen.fusion.expression import CPP, identifier
from treadle.codegen.fusion.kernel import KernelText
from treadle.codegen.fusion.typed import AGAIN, COMPUTE, Space, TypedBlock, TypedProgram, TypedStep
from treadle.codegen.templates import template
from treadle.planner.machine.dtypes import BYTES
from treadle.planner.passes.fusion.layouts import Sliced
from treadle.planner.passes.fusion.program import Bindings
from treadle.planner.passes.fusion.stages import Stage

JOINS = {"+": "Plus", "min": "Least", "max": "Greatest"}
SPACES: Mapping[Space, int] = {"input": 1, "output": 2, "stage": 3}
LINE = 128
LINE_PACKS = 15
"""Packs that eight threads move together under LL128."""
STATE_BYTES = 3 * LINE

Row = tuple[int, ...]
Link = tuple[int | None, int | None, int]
"""From rank, to rank, channel."""


@dataclass(frozen=True)
class Parts:
    """The types and tables that `Collective<NAME_about>::run` needs."""

    text: str
    blocks: int
    arena_bytes: int


def emit(stage: Stage, context: Context) -> KernelText:
    """The kernel of a collective stage. Raises as `collective_stage` does."""
    return text(collective_stage(stage, context), context)


def text(plan: CollectiveStage, context: Context, *, ready: str = "Always", done: str = "Always") -> KernelText:
    """The kernel of a plan. `ready` and `done` are types of treadle_overlap.h: what it awaits and what it signals."""
    made = parts(plan, context, ready=ready, done=done)
    name = identifier(plan.stage.name)
    source = template("fusion/collective.cu.j2").render(parts=made.text, name=name)
    return KernelText(name, source, made.blocks, "communication", about(plan, context), made.arena_bytes)


def about(plan: CollectiveStage, context: Context) -> str:
    """A line for readers."""
    return f"{plan.stage.name}: {', '.join(plan.stage.named)}; {plan.program.name}, {context.protocol}"


def parts(
    plan: CollectiveStage,
    context: Context,
    *,
    ready: str = "Always",
    done: str = "Always",
    output_at: int | None = None,
) -> Parts:
    """A plan without its kernel. With `output_at` the rank's slice of the output lies there in the arena."""
    scope, anatomy, made, typed = context.scope, plan.anatomy, plan.made, plan.typed
    result = made.result if made is not None else plan.dtype
    sizes = [BYTES[plan.dtype], *([BYTES[result]] if result else [])]
    blocks = max((len(lanes) for lanes in typed.lanes), default=1)
    tables = tables_of(typed, scope.bindings, _groups(plan, context), takes=made is None or made.value is not None)
    most = max((move.count for lanes in typed.lanes for lane in lanes for move in lane.steps), default=1) or 1
    chunk_bytes = _lines(max(_wire(size, plan.pack, plan.chunking.longest, context.protocol) for size in sizes))
    stage_bytes = _lines(plan.chunking.iterations * plan.chunking.longest * max(sizes))
    inboxes = context.arena + blocks * STATE_BYTES
    staged = inboxes + tables.areas * typed.slots * most * chunk_bytes
    source, target = _ends(plan, context, output_at)
    body = template("fusion/collective_parts.cu.j2").render(
        functor=made.text if made is not None else "",
        about=about(plan, context),
        name=identifier(plan.stage.name),
        input_type=CPP[plan.dtype],
        output_type=CPP[result] if result else "Nothing",
        finish=made.name if made is not None else "Unchanged",
        join=JOINS[str(anatomy.first.attribute("op", "+"))] if anatomy.first else "Plus",
        slots_type=f"{context.protocol}Slots",
        chunks_type=plan.chunking.type,
        ready=ready,
        done=done,
        computes=made is not None,
        takes=made is not None and made.value is not None,
        reduces=anatomy.first is not None,
        input=source,
        output=target,
        scattered=scope.scattered,
        output_at=-1 if output_at is None else output_at,
        pack=plan.pack,
        ranks=scope.bindings.ranks,
        chunks=typed.chunks,
        blocks=blocks,
        stride=1 + max((entry[1] for entry in tables.entries), default=0),
        slots=typed.slots,
        lanes=context.arena,
        inboxes=inboxes,
        staged=staged,
        chunk_bytes=chunk_bytes,
        slot_bytes=most * chunk_bytes,
        stage_bytes=stage_bytes,
        entries=tables.entries,
        moves=tables.moves,
    )
    return Parts(body, blocks, staged + typed.stages * stage_bytes - context.arena)


@dataclass(frozen=True)
class End:
    """A tensor at one end of a collective."""

    index: int
    name: str
    sliced: bool


def _ends(plan: CollectiveStage, context: Context, output_at: int | None) -> tuple[End | None, End | None]:
    """What the engine itself reads and writes; the computation loads and stores the rest."""
    anatomy, made = plan.anatomy, plan.made

    def end(name: str) -> End:
        index, buffer = context.scope.storage(name)
        return End(index, buffer.name, isinstance(buffer.layout, Sliced))

    source = None if made is not None and made.value is None else end(str(anatomy.sends.inputs[0]))
    if output_at is not None or (anatomy.last is None and made is not None):
        return source, None
    return source, end((anatomy.last or anatomy.sends).name)


def _groups(plan: CollectiveStage, context: Context) -> range | None:
    """The groups that each run the program, None where one program spans all of them."""
    if plan.anatomy.collective == "send":
        return None
    values = context.scope.program.by_name.values()
    runs = context.scope.bindings.groups - max((value.type.group.offset for value in values), default=0)
    first = plan.anatomy.sends.type.group.offset
    return range(first, first + runs)


def _wire(size: int, pack: int, count: int, protocol: str) -> int:
    """Bytes of `count` elements of `size` bytes in a slot, or of fewer: as treadle_slots.h lays them out."""
    if protocol == "Simple":
        return size * count
    if protocol == "LL128":
        groups = -(-count // (LINE_PACKS * pack))
        return LINE * (groups * (2 if size * pack > 8 else 1) + (pack > 1))
    return 8 * (-(-count // pack) * -(-size * pack // 4) + (pack - 1) * -(-size // 4))


def _lines(size: int) -> int:
    return -(-size // LINE) * LINE


# Tables.


@dataclass(frozen=True)
class KernelTables:
    """`Entry` of treadle_collective.h by world rank and block; `Move`, with words at the first of each block; the most
    connections that end at a rank."""

    entries: list[Row]
    moves: list[tuple[str, Row]]
    areas: int


IDLE: Row = (0, 0, 0, 0, -1, -1, -1, -1, -1, -1)


def tables_of(typed: TypedProgram, bindings: Bindings, groups: range | None, *, takes: bool) -> KernelTables:
    """The tables of all ranks. The ranks of the program are those of each of `groups`, or of the world. Unless the
    computation `takes` what a move would read, that is not read."""
    areas = _areas(typed)
    blocks = max((len(lanes) for lanes in typed.lanes), default=1)
    rows: list[tuple[str, Row]] = []
    plans: list[list[Row]] = []
    for rank, lanes in enumerate(typed.lanes):
        places = {move: (number, place) for number, lane in enumerate(lanes) for place, move in _numbered(lane)}
        awaited = {before for lane in lanes for move in lane.steps for before in move.after}
        taken: set[int] = set()
        plans.append([])
        for lane in lanes:
            listed = list(_rows(lane, places, awaited, taken, takes))
            plans[-1].append((len(rows), len(listed), *_connections(typed, areas, rank, lane)))
            rows += [(_words(rank, lane) if not place else "", row) for place, row in enumerate(listed)]
    entries: list[Row] = []
    for world in range(bindings.ranks * bindings.groups):
        group, rank = divmod(world, bindings.ranks)
        mine = plans[world] if groups is None else plans[rank] if group in groups else []
        base = group * bindings.ranks if groups is not None else 0
        entries += [tuple(x + base if place in (4, 7) and x >= 0 else x for place, x in enumerate(row)) for row in mine]
        entries += [IDLE] * (blocks - len(mine))
    most = max((sum(link[1] == rank for link in areas) for rank in range(len(typed.lanes))), default=0)
    return KernelTables(entries, rows or [("", (0,) * 12)], most)


def _words(rank: int, lane: TypedBlock) -> str:
    came = f", from {lane.recv}" if lane.recv is not None else ""
    return f"rank {rank}{came}" + (f", to {lane.send}" if lane.send is not None else "")


def _areas(typed: TypedProgram) -> dict[Link, int]:
    """For each connection its number among those that end at the same rank."""
    found: dict[Link, int] = {}
    links = {
        (lane.recv, rank, lane.channel)
        for rank, lanes in enumerate(typed.lanes)
        for lane in lanes
        if _messages(lane, RECEIVE)
    }
    for link in sorted(links, key=lambda link: (link[1], link[0] or 0, link[2])):
        found[link] = sum(other[1] == link[1] for other in found)
    return found


def _messages(lane: TypedBlock, way: int) -> int:
    return sum(bool(move.flow & way) for move in lane.steps)


def _connections(typed: TypedProgram, areas: Mapping[Link, int], rank: int, lane: TypedBlock) -> Row:
    """Messages that come in and go out in an iteration; where from: rank, block, area; where to."""
    received, sent = _messages(lane, RECEIVE), _messages(lane, SEND)
    came: Row = (-1, -1, -1)
    goes: Row = (-1, -1, -1)
    if received and lane.recv is not None:
        came = (lane.recv, _block(typed, lane.recv, rank, lane.channel, SEND), areas[lane.recv, rank, lane.channel])
    if sent and lane.send is not None:
        goes = (lane.send, _block(typed, lane.send, rank, lane.channel, RECEIVE), areas[rank, lane.send, lane.channel])
    return (received, sent, *came, *goes)


def _block(typed: TypedProgram, rank: int, peer: int, channel: int, way: int) -> int:
    """The block of `rank` that sends to or receives from `peer` on a channel."""
    for number, lane in enumerate(typed.lanes[rank]):
        other = lane.send if way == SEND else lane.recv
        if (other, lane.channel) == (peer, channel) and _messages(lane, way):
            return number
    raise AssertionError(f"a connection of {rank} and {peer} with one end")


def _numbered(lane: TypedBlock) -> Iterator[tuple[int, TypedStep]]:
    """The steps of a threadblock with their places; one that waits for several others has waiting rows before it."""
    place = 0
    for move in lane.steps:
        place += max(0, len(move.after) - 1)
        yield place, move
        place += 1


def _rows(
    lane: TypedBlock, places: Mapping[TypedStep, tuple[int, int]], awaited: set[TypedStep], taken: set[int], takes: bool
) -> Iterator[Row]:
    for move in lane.steps:
        waits = [places[before] for before in move.after]
        for wait in waits[:-1]:
            yield (*(0,) * 9, *wait, 0)
        flow = move.flow if takes or not move.flow & COMPUTE else move.flow & ~READ
        flow |= AGAIN if _again(move, taken) else 0
        operands = [
            (SPACES[operand[0]], operand[1]) if operand else (0, 0)
            for operand in (move.source, move.addend, move.target)
        ]
        last = waits[-1] if waits else (-1, -1)
        yield (
            flow,
            max(0, move.chunk),
            move.count,
            *(x for pair in operands for x in pair),
            *last,
            int(move in awaited),
        )


def _again(move: TypedStep, taken: set[int]) -> bool:
    """Whether a move reads tensors of the caller, but nothing that is new to the rank; `taken` are its input chunks so
    far, which are added to."""
    spaces = {operand[0] for operand in (move.source, move.addend) if operand}
    chunks = set(range(move.chunk, move.chunk + move.count)) if "input" in spaces else set()
    known = chunks <= taken
    taken |= chunks
    return known and bool(spaces & {"input", "output"})
