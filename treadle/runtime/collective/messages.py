"""Executes a collective program on real processes, over the point-to-point messages of torch.distributed.

Each rank follows its part of one sequence (`script`) and blocks on every receive: nothing is polled and nothing
deadlocks. Messages go from memory to memory where that is safe, receives are posted as early as possible, so that what
travels overlaps with what is added up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed

from treadle.codegen import emit
from treadle.codegen.collective.msccl import xml
from treadle.codegen.collective.program import CollectiveProgram, Connection
from treadle.codegen.collective.symbolic import UNSPECIFIED
from treadle.codegen.targets import PLAN_NAME
from treadle.planner.documents import store
from treadle.planner.documents.files import read_text
from treadle.planner.documents.nearest import meant
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InputError
from treadle.planner.passes import as_pass
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.runtime.collective.script import Action, MessageEnd, Range, script_of

FIFO_DEPTH = 2
PIECE_BYTES = 2**19
"""Messages above this travel in pieces."""

COMBINE: dict[str, Callable[..., Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
}
"""How two contributions become one, by the name of the reduction; an average is a sum divided in the end."""

REDUCING = frozenset({"allreduce", "reducescatter", "reduce"})
GATHERING = frozenset({"allgather", "gather"})
SCATTERING = frozenset({"reducescatter", "scatter"})


class Shape(NamedTuple):
    """How many parts the input and the output of a rank hold: a part for each rank, or the one whole buffer; for an
    irregular collective the parts of its pattern."""

    inputs: int
    outputs: int


def shape_of(collective: str, ranks: int) -> Shape:
    """Elements of a part of a regular collective; the same on every rank."""
    return {
        "allgather": Shape(1, ranks),
        "gather": Shape(1, ranks),
        "reducescatter": Shape(ranks, 1),
        "scatter": Shape(ranks, 1),
        "alltoall": Shape(ranks, ranks),
    }.get(collective, Shape(1, 1))


def executor(
    program: CollectiveProgram,
    rank: int,
    group: Any = None,
    *,
    inplace: bool | None = None,
    fifo_depth: int = FIFO_DEPTH,
    cut: int = 1,
) -> Executor:
    """A function that runs `program` as `rank` of `group`, which every rank must call with tensors of one shape.

    See `Executor.__call__`. `inplace` is by default what the program was made for. `cut` says how many chunks of the
    program are one part of an irregular collective (chunkup times instances). Raises InputError when the group has
    another number of ranks or the program needs what a CPU call does not have, CheckFailed when it never ends.
    """
    world = distributed.get_world_size(group)
    if world != len(program.ranks):
        raise InputError(f"found {world} processes, expected the program's {len(program.ranks)} ranks")
    if any(step.type == "ra" for _, _, step in program.steps()):
        raise InputError("found a step of type ra, which adds residuals that a call here does not have")
    here = not program.outofplace if inplace is None else inplace
    script = script_of(program, rank, inplace=here, fifo_depth=fifo_depth)
    return Executor(program, rank, group, here, script, cut)


def load_executor(folder: Path | str, rank: int, group: Any = None) -> Executor:
    """The executor of a folder that `treadle generate --target msccl-xml` wrote; in place where it has such a program.
    Raises InputError when the folder holds no collective or was changed since it was written."""
    path = Path(folder)
    programs = programs_in(path)
    chosen = next((program for program in programs.values() if program.inplace), next(iter(programs.values())))
    return executor(chosen, rank, group, cut=cut_of(decisions_in(path)))


def programs_in(folder: Path) -> dict[str, CollectiveProgram]:
    """The programs of an artefact folder, or of one MSCCL XML file, by file name."""
    if folder.is_file():
        return {folder.name: xml.parse(read_text(folder), str(folder))}
    manifest, texts = emit.read(folder)
    programs = {n: xml.parse(text, str(folder / n)) for n, text in texts.items() if n.endswith(".xml")}
    if not programs:
        raise InputError(f"found an artefact for {manifest.target}, expected a collective", where=str(folder))
    return programs


def decisions_in(folder: Path) -> CollectiveDecisions | None:
    """The collective plan in an artefact folder, None for a foreign file."""
    if not (folder / PLAN_NAME).is_file():
        return None
    plan = as_pass(store.load(folder / PLAN_NAME, Plan), CollectiveDecisions)
    return None if plan is None else plan.decisions


def cut_of(decisions: CollectiveDecisions | None) -> int:
    """Chunks of the program that are one part of an irregular collective."""
    return 1 if decisions is None else decisions.chunkup * decisions.instances


class Executor:
    """See `executor`; `script` is what this rank does."""

    def __init__(
        self, program: CollectiveProgram, rank: int, group: Any, inplace: bool, script: tuple[Action, ...], cut: int = 1
    ) -> None:
        self.program, self.rank, self.inplace, self.script = program, rank, inplace, script
        self.group: Any = distributed.group.WORLD if group is None else group
        self.irregular = program.collective in UNSPECIFIED
        if self.irregular:
            own = program.ranks[rank]
            self.shape, self.part_chunks = Shape(own.input_chunks // cut, own.output_chunks // cut), cut
        else:
            self.shape, self.part_chunks = shape_of(program.collective, len(program.ranks)), program.part_chunks
        self.widest: dict[tuple[Connection, int], int] = {}
        """Chunks of each slot."""
        self.kept: tuple[Any, dict[tuple[Connection, int], Tensor]] | None = None
        self.most = max((step.count for _, _, step in program.steps()), default=1)
        for action in script:
            for message in (action.receives, action.sends):
                if message is not None and message.slot is not None:
                    self.widest[message.slot] = max(self.widest.get(message.slot, 0), message.count)

    def __call__(
        self, tensor: Tensor, *, op: str = "sum", out: Tensor | None = None, part: int | None = None
    ) -> Tensor:
        """Run the collective on `tensor`, this rank's input; returns its output.

        The input is the rank's part (allgather, gather), the parts for all ranks one after the other along the first
        dimension (reducescatter, alltoall, scatter), the parts of its pattern (alltoallv, sendrecv, custom), else the
        whole. Every rank passes one, also where its contents do not matter (broadcast, scatter); a rank of an irregular
        collective that holds no part says with `part` how many elements one has. Any size works; odd ones are padded.

        `op` is sum, min, max or avg. In place, allreduce, broadcast and reduce work in the caller's tensor and return
        it; otherwise the input stays as it is, and `out`, a contiguous tensor of the result's size, takes the result
        where it is given. On ranks to which the collective promises nothing the result is unspecified.

        Raises InputError when the tensor cannot be cut or `op` is unknown.
        """
        if op not in COMBINE:
            raise InputError(f"found op {op!r}, {meant(op, COMBINE)}")
        part = self._part(tensor, part)
        if part == 0 or (self.irregular and self.shape == Shape(0, 0)):
            return tensor.new_empty(self._result_shape(tensor, part)) if out is None else out
        width = math.ceil(part / self.part_chunks)
        averaged = op == "avg" and self.program.collective in REDUCING
        early = averaged and tensor.is_floating_point() and tensor.element_size() < 4
        given = tensor.detach() / len(self.program.ranks) if early else tensor.detach()
        buffers, direct = self._buffers(given, part, width, out)
        self._run(buffers, width, given, COMBINE[op])
        result = self._result(given, tensor, buffers, part, direct and not early, out)
        if averaged and not early:
            if result.is_floating_point():
                result.div_(len(self.program.ranks))
            else:
                result.div_(len(self.program.ranks), rounding_mode="trunc")
        return result

    def _part(self, tensor: Tensor, part: int | None) -> int:
        """Elements of one part."""
        parts = self.shape.inputs
        if self.irregular:
            if parts and tensor.numel() % parts == 0 and part in (None, tensor.numel() // parts):
                return tensor.numel() // parts
            if not parts and tensor.numel() == 0 and part is not None:
                return part
            size = "one size" if part is None else f"{part} elements each"
            raise InputError(f"found {tensor.numel()} elements, expected {parts} parts of {size}")
        if parts > 1 and (tensor.dim() == 0 or tensor.shape[0] % parts):
            raise InputError(
                f"found a tensor of shape {tuple(tensor.shape)}, expected a first dimension that {parts} ranks divide"
            )
        return tensor.numel() // parts

    def _buffers(self, tensor: Tensor, part: int, width: int, out: Tensor | None) -> tuple[dict[str, Tensor], bool]:
        """Flat buffers; and whether the caller's own memory is the one the program works in."""
        padded = self.part_chunks * width
        flat = tensor.reshape(self.shape.inputs, part) if tensor.numel() else tensor.new_empty(self.shape.inputs, part)
        gathers, scatters = (self.program.collective in names for names in (GATHERING, SCATTERING))
        whole = padded == part and tensor.is_contiguous()
        direct = whole and not (self.inplace and (gathers or scatters or self.program.collective == "alltoall"))
        if direct:
            given = flat
        else:
            given = tensor.new_zeros(self.shape.inputs, padded)
            given[:, :part] = flat
        if self.inplace and not gathers:
            made = given
        elif out is not None and padded == part and out.is_contiguous() and out.numel() == self.shape.outputs * part:
            made = out.detach().view(self.shape.outputs, part)
        else:
            made = tensor.new_empty(self.shape.outputs, padded)
        if self.inplace and gathers:
            made[self.rank] = given[0]
        scratch = tensor.new_empty(self.program.ranks[self.rank].scratch_chunks * width)
        buffers = {"i": given.view(-1), "o": made.view(-1), "s": scratch}
        for source, target in self.program.ranks[self.rank].copies:
            _slice(buffers, ("o", target, 1), width).copy_(_slice(buffers, ("i", source, 1), width))
        return buffers, direct

    def _result_shape(self, tensor: Tensor, part: int) -> tuple[int, ...]:
        if self.irregular:
            return (self.shape.outputs * part,)
        if self.shape.inputs == self.shape.outputs:
            return tuple(tensor.shape)
        first, *rest = tensor.shape or (1,)
        return (first * self.shape.outputs // self.shape.inputs, *rest)

    def _result(
        self, given: Tensor, tensor: Tensor, buffers: dict[str, Tensor], part: int, direct: bool, out: Tensor | None
    ) -> Tensor:
        working = self.inplace and self.shape == Shape(1, 1)
        if working and direct:
            return tensor
        if self.inplace and self.program.collective in SCATTERING:
            rows = buffers["i"].view(self.shape.inputs, -1)[self.rank : self.rank + 1]
        else:
            rows = buffers["o"].view(self.shape.outputs, -1) if self.shape.outputs else buffers["o"].view(0, part)
        result = rows[:, :part].reshape(self._result_shape(given, part))
        if working:
            return tensor.detach().copy_(result)
        if out is None:
            return result
        if out.data_ptr() != result.data_ptr():
            out.detach().copy_(result.view(out.shape))
        return out

    def _run(self, buffers: dict[str, Tensor], width: int, like: Tensor, combine: Callable[..., Tensor]) -> None:
        """Execute the script. Large messages travel in pieces, so that one is in flight while another is added up."""
        send, receive, script = self.group.send, self.group.recv, self.script
        piece = max(1, PIECE_BYTES // like.element_size())
        most = -(-self.most * width // piece)
        slots = self._slots(width, like)
        arriving: dict[int, list[tuple[Tensor, Any]]] = {}
        leaving: dict[int, list[Any]] = {}
        filled: dict[tuple[Connection, int], list[Any]] = {}

        def place(message: MessageEnd, at: Range | None) -> Tensor:
            if message.slot is not None:
                return slots[message.slot][: message.count * width]
            assert at is not None
            return _slice(buffers, at, width)

        for index, action in enumerate(script):
            for earlier in action.waits:
                _wait(leaving.pop(earlier, []))
            for other in action.needs:
                if other != index:
                    _wait([work for _, work in arriving.pop(other, ())])
            for post in action.posts:
                message = script[post].receives
                assert message is not None
                arriving[post] = [
                    (part, receive([part], message.peer, message.tag * most + number))
                    for number, part in enumerate(place(message, script[post].writes).split(piece))
                ]
            if action.receives is not None and index not in action.needs:
                continue
            target = None if action.writes is None else _slice(buffers, action.writes, width)
            sends, copy = action.sends, None
            if sends is not None and sends.slot is not None:
                _wait(filled.pop(sends.slot, []))
                copy = place(sends, None)
            operands = [_slice(buffers, at, width) for at in action.reads]
            arrived = arriving.pop(index, None)
            ends = (target, copy)
            rows = zip(*(end.split(piece) for end in (*operands, *(e for e in ends if e is not None))), strict=True)
            works = []
            for number, row in enumerate(rows if operands or target is not None or copy is not None else ()):
                terms, (to, slot) = list(row[: len(operands)]), _ends(row[len(operands) :], ends)
                if arrived is not None:
                    part, work = arrived[number]
                    work.wait()
                    terms.insert(0, part)
                value = terms[0]
                into = slot if to is None else to
                if len(terms) > 1:
                    value = combine(*terms, out=into)
                elif into is not None and into.data_ptr() != value.data_ptr():
                    value = into.copy_(value)
                if sends is None:
                    continue
                if slot is not None and slot.data_ptr() != value.data_ptr():
                    value = slot.copy_(value)
                works.append(send([value], sends.peer, sends.tag * most + number))
            if sends is not None and sends.slot is not None:
                filled[sends.slot] = works
            elif works:
                leaving[index] = works
        for messages in arriving.values():
            _wait([work for _, work in messages])
        for works in (*leaving.values(), *filled.values()):
            _wait(works)

    def _slots(self, width: int, like: Tensor) -> dict[tuple[Connection, int], Tensor]:
        """Buffers that messages pass through, kept for the next call of the same size."""
        key = (width, like.dtype, like.device)
        if self.kept is None or self.kept[0] != key:
            self.kept = key, {slot: like.new_empty(count * width) for slot, count in self.widest.items()}
        return self.kept[1]


def _wait(works: list[Any]) -> None:
    for work in works:
        work.wait()


def _ends(parts: tuple[Tensor, ...], ends: tuple[Tensor | None, Tensor | None]) -> tuple[Tensor | None, Tensor | None]:
    """The pieces of those of the two ends that are there."""
    found = iter(parts)
    return tuple(None if end is None else next(found) for end in ends)  # type: ignore[return-value]


def _slice(buffers: dict[str, Tensor], place: Range, width: int) -> Tensor:
    buffer, first, count = place
    return buffers[buffer][first * width : (first + count) * width]
