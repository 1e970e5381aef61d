"""Executes a collective program on real processes, over the point-to-point messages of torch.distributed.

All ranks follow one sequence of the whole program that `codegen.order` found to end on bounded FIFOs, each its own
part of it, and block on every receive: so nothing is polled and nothing deadlocks. A connection is a pair of small
rings of buffers, as in the public runtimes: a send returns when the chunks are in a slot, receives are posted ahead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed

from codegen import emit, msccl_xml, order
from codegen.program import Connection, Place, Program, Step, home
from planner.errors import CheckFailed, InputError
from planner.files import read_text

FIFO_DEPTH = 2

Executor = Callable[[Tensor], Tensor]


class Shape(NamedTuple):
    """How many ranks' parts the input and the output of a collective hold."""

    inputs: int
    outputs: int


def shape_of(collective: str, ranks: int) -> Shape:
    return {
        "allgather": Shape(1, ranks),
        "reducescatter": Shape(ranks, 1),
        "alltoall": Shape(ranks, ranks),
    }.get(collective, Shape(1, 1))


class _Instruction(NamedTuple):
    """A step with its addresses resolved, and its connections' numbers of chunks and message."""

    step: Step
    reads: tuple[tuple[str, int], ...]
    writes: tuple[str, int] | None
    receives: Connection | None
    sends: Connection | None


def executor(
    program: Program, rank: int, group: Any = None, *, inplace: bool | None = None, fifo_depth: int = FIFO_DEPTH
) -> Executor:
    """A function that runs `program` as `rank` of `group`, which every rank must call with tensors of one shape.

    It takes this rank's input: for allgather its part, for reducescatter and alltoall the parts for all ranks one
    after the other along the first dimension, else the whole. Any size works; odd ones are padded. In place (by
    default where the program can run in no other way) allreduce, broadcast and reduce work in the caller's tensor and
    return it; otherwise the input stays as it is. Raises InputError when the group has another number of ranks or the
    tensor cannot be cut, CheckFailed when the program never ends.
    """
    world = distributed.get_world_size(group)
    if world != len(program.ranks):
        raise InputError(f"found {world} processes, expected the program's {len(program.ranks)} ranks")
    if program.collective == "custom":
        raise InputError("found collective custom, which does not say what goes in and what comes out")
    run = order.run(program, fifo_depth)
    if run.stuck:
        raise CheckFailed("the program never ends; `treadle check` says why")
    here = not program.outofplace if inplace is None else inplace
    script = [_instruction(program, place, here) for place in run.sequence if place.rank == rank]
    return _Executor(program, rank, group, here, fifo_depth, script)


def load_executor(folder: Path | str, rank: int, group: Any = None) -> Executor:
    """The executor of a folder that `treadle generate --target msccl-xml` wrote; in place where it has such a program.

    Raises InputError when the folder holds no collective or was changed since it was written.
    """
    programs = programs_in(Path(folder))
    chosen = next((program for program in programs.values() if program.inplace), next(iter(programs.values())))
    return executor(chosen, rank, group)


def programs_in(folder: Path) -> dict[str, Program]:
    """The programs of an artefact folder, or of one MSCCL XML file, by file name."""
    if folder.is_file():
        return {folder.name: msccl_xml.parse(read_text(folder), str(folder))}
    manifest, texts = emit.read(folder)
    programs = {n: msccl_xml.parse(text, str(folder / n)) for n, text in texts.items() if n.endswith(".xml")}
    if manifest.target != "msccl-xml" or not programs:
        raise InputError(f"found an artefact for {manifest.target}, expected a collective", where=str(folder))
    return programs


def _instruction(program: Program, place: Place, inplace: bool) -> _Instruction:
    block = program.ranks[place.rank].threadblocks[place.threadblock]
    step = block.steps[place.step]

    def address(operand: tuple[Any, int]) -> tuple[str, int]:
        if not inplace:
            return operand
        return home(program.collective, program.part_chunks, place.rank, *operand)

    return _Instruction(
        step,
        tuple(address(operand) for operand in step.reads),
        None if step.writes is None else address(step.writes),
        order.incoming(place, block, step),
        order.outgoing(place, block, step),
    )


class _Executor:
    """See `executor`. `script` is this rank's part of the sequence."""

    def __init__(
        self, program: Program, rank: int, group: Any, inplace: bool, fifo_depth: int, script: list[_Instruction]
    ) -> None:
        self.program, self.rank, self.group, self.inplace = program, rank, group, inplace
        self.fifo_depth, self.script = fifo_depth, script
        self.shape = shape_of(program.collective, len(program.ranks))

    def __call__(self, tensor: Tensor) -> Tensor:
        self._require_parts(tensor)
        part = tensor.numel() // self.shape.inputs
        if part == 0:
            return tensor.new_empty(self._result_shape(tensor))
        width = math.ceil(part / self.program.part_chunks)
        buffers, direct = self._buffers(tensor.detach(), part, width)
        self._run(buffers)
        return self._result(tensor, buffers, part, direct)

    def _require_parts(self, tensor: Tensor) -> None:
        parts = self.shape.inputs
        if parts > 1 and (tensor.dim() == 0 or tensor.shape[0] % parts):
            raise InputError(
                f"found a tensor of shape {tuple(tensor.shape)}, expected a first dimension that {parts} ranks divide"
            )

    def _buffers(self, tensor: Tensor, part: int, width: int) -> tuple[dict[str, Tensor], bool]:
        """Buffers of chunks, one per row; and whether the caller's own memory is the one the program works in."""
        padded = self.program.part_chunks * width
        flat = tensor.reshape(self.shape.inputs, part)
        fits = padded == part and tensor.is_contiguous()
        scratch = tensor.new_empty(self.program.ranks[self.rank].scratch_chunks, width)
        gathers, scatters = (self.program.collective == name for name in ("allgather", "reducescatter"))
        direct = fits and not (self.inplace and (gathers or scatters or self.program.collective == "alltoall"))
        if direct:
            given = flat
        else:
            given = tensor.new_zeros(self.shape.inputs, padded)
            given[:, :part] = flat
        made = given if self.inplace and not gathers else tensor.new_empty(self.shape.outputs, padded)
        if self.inplace and gathers:
            made[self.rank] = given[0]
        buffers = {"i": given.view(-1, width), "o": made.view(-1, width), "s": scratch}
        for source, target in self.program.ranks[self.rank].copies:
            buffers["o"][target].copy_(buffers["i"][source])
        return buffers, direct

    def _result_shape(self, tensor: Tensor) -> tuple[int, ...]:
        if self.shape.inputs == self.shape.outputs:
            return tuple(tensor.shape)
        first, *rest = tensor.shape or (1,)
        return (first * self.shape.outputs // self.shape.inputs, *rest)

    def _result(self, tensor: Tensor, buffers: dict[str, Tensor], part: int, direct: bool) -> Tensor:
        working = self.inplace and self.shape == Shape(1, 1)
        if working and direct:
            return tensor
        if self.inplace and self.program.collective == "reducescatter":
            rows = buffers["i"].view(self.shape.inputs, -1)[self.rank : self.rank + 1]
        else:
            rows = buffers["o"].view(self.shape.outputs, -1)
        result = rows[:, :part].reshape(self._result_shape(tensor))
        return tensor.detach().copy_(result) if working else result

    def _run(self, buffers: dict[str, Tensor]) -> None:
        width = buffers["i"].shape[1] if buffers["i"].numel() else buffers["o"].shape[1]
        like = buffers["o"]
        inboxes, outboxes = self._boxes(like, width)
        for step, reads, writes, receives, sends in self.script:
            if step.type == "nop":
                continue
            operands = [buffers[buffer][index : index + step.count] for buffer, index in reads]
            target = None if writes is None else buffers[writes[0]][writes[1] : writes[1] + step.count]
            if receives is not None:
                operands.insert(0, inboxes[receives].next())
            value = operands[0]
            if len(operands) > 1:
                value = torch.add(*operands) if target is None else torch.add(*operands, out=target)
            elif target is not None and target.data_ptr() != value.data_ptr():
                target.copy_(value)
            if sends is not None:
                outboxes[sends].put(value)
            if receives is not None:
                inboxes[receives].release()
        for box in outboxes.values():
            box.drain()

    def _boxes(self, like: Tensor, width: int) -> tuple[dict[Connection, _Inbox], dict[Connection, _Outbox]]:
        arriving: dict[Connection, list[int]] = {}
        leaving: dict[Connection, int] = {}
        for step, _, _, receives, sends in self.script:
            if receives is not None:
                arriving.setdefault(receives, []).append(step.count)
            if sends is not None:
                leaving[sends] = max(leaving.get(sends, 0), step.count)
        inboxes = {
            connection: _Inbox(
                connection, self.group, self._ring(like, max(counts), width), counts, self.program.channels
            )
            for connection, counts in arriving.items()
        }
        outboxes = {
            connection: _Outbox(connection, self.group, self._ring(like, size, width), self.program.channels)
            for connection, size in leaving.items()
        }
        return inboxes, outboxes

    def _ring(self, like: Tensor, size: int, width: int) -> list[Tensor]:
        return [like.new_empty(size, width) for _ in range(self.fifo_depth)]


@dataclass(eq=False)
class _Outbox:
    """The sending end of a connection: a full slot is waited for before it is filled again."""

    connection: Connection
    group: Any
    slots: list[Tensor]
    channels: int
    works: list[Any] = field(default_factory=list)

    def put(self, value: Tensor) -> None:
        number = len(self.works)
        if number >= len(self.slots):
            self.works[number - len(self.slots)].wait()
        slot = self.slots[number % len(self.slots)][: len(value)]
        slot.copy_(value)
        self.works.append(
            distributed.isend(
                slot,
                group=self.group,
                group_dst=self.connection.dst,
                tag=number * self.channels + self.connection.channel,
            )
        )

    def drain(self) -> None:
        for work in self.works[-len(self.slots) :]:
            work.wait()


@dataclass(eq=False)
class _Inbox:
    """The receiving end: receives are posted as many messages ahead as there are slots."""

    connection: Connection
    group: Any
    slots: list[Tensor]
    counts: list[int]
    channels: int
    posted: list[tuple[Tensor, Any]] = field(default_factory=list)
    taken: int = 0

    def __post_init__(self) -> None:
        for _ in self.slots:
            self.post()

    def post(self) -> None:
        number = len(self.posted)
        if number == len(self.counts):
            return
        slot = self.slots[number % len(self.slots)][: self.counts[number]]
        work = distributed.irecv(
            slot, group=self.group, group_src=self.connection.src, tag=number * self.channels + self.connection.channel
        )
        self.posted.append((slot, work))

    def next(self) -> Tensor:
        slot, work = self.posted[self.taken]
        work.wait()
        return slot

    def release(self) -> None:
        self.taken += 1
        self.post()
