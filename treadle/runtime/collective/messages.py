"""Executes a collective program on real processes, of one host or of several.

An `Executor` lays out a call: buffers of whole chunks, padding, averages. A carrier then moves the chunks. On CPUs each
rank's part becomes actions that wait only for one another's chunks (`treadle.codegen.collective.actions`), which
compiled code runs over shared memory and TCP (`wire`). `grouped` has the carrier for GPUs of several hosts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, distributed

from treadle.codegen import emit
from treadle.codegen.collective.actions import Action, Range, script_of
from treadle.codegen.collective.msccl import xml
from treadle.codegen.collective.program import CollectiveProgram, RankProgram
from treadle.codegen.collective.symbolic import UNSPECIFIED
from treadle.codegen.emit import text_digest
from treadle.codegen.targets import PLAN_NAME, targets_of
from treadle.planner.documents import store
from treadle.planner.documents.files import read_text
from treadle.planner.documents.nearest import meant
from treadle.planner.documents.plan import Plan, Shots
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.collective.direct import is_in_switch, shots_of
from treadle.runtime.collective.wire.groups import wire_of
from treadle.runtime.collective.wire.native import OPERATIONS, RankWire, WireScript

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
    cut: int = 1,
) -> Executor:
    """A function that runs `program` as `rank` of `group`, which every rank must call with tensors of one shape.

    See `Executor.__call__`. `inplace` is by default what the program was made for. `cut` says how many chunks of the
    program are one part of an irregular collective (chunkup times instances). Raises InputError when the group has
    another number of ranks or the program needs what a CPU call does not have, CheckFailed when it never ends.
    """
    require_runnable(program, group)
    here = not program.outofplace if inplace is None else inplace
    return on_wire(program, wire_of(distributed.group.WORLD if group is None else group), inplace=here, cut=cut)


def on_wire(program: CollectiveProgram, wire: RankWire, *, inplace: bool, cut: int = 1) -> Executor:
    """The executor of the rank of `wire`."""
    script = script_of(program, wire.rank, inplace=inplace)
    carrier = OnWire(wire, script, len(program.ranks), f"{inplace} {program!r}")
    return Executor(program, wire.rank, carrier, inplace=inplace, cut=cut)


def require_runnable(program: CollectiveProgram, group: Any) -> None:
    """Raises InputError when `group` has another number of ranks than `program`, or a call here lacks what it needs."""
    world = distributed.get_world_size(group)
    if world != len(program.ranks):
        raise InputError(f"found {world} processes, expected the program's {len(program.ranks)} ranks")
    if any(step.type == "ra" for _, _, step in program.steps()):
        raise InputError("found a step of type ra, which adds residuals that a call here does not have")


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
    if (plan := plan_in(folder)) is not None and plan.decisions.switched:
        raise InputError(
            "in this plan a switch adds up or multicasts, expected one of messages; --target cuda, and then "
            "--backend fibers or cuda, execute it",
            where=str(folder),
        )
    programs = {n: xml.parse(text, str(folder / n)) for n, text in texts.items() if n.endswith(".xml")}
    if not programs:
        raise InputError(f"found an artefact for {manifest.target}, expected a collective", where=str(folder))
    return programs


def plan_in(folder: Path) -> Plan[CollectiveDecisions] | None:
    """The plan in an artefact folder as one of a collective, None for a foreign file."""
    if not (folder / PLAN_NAME).is_file():
        return None
    plan = store.load(folder / PLAN_NAME, Plan)
    return targets_of(plan).collective(plan)


def decisions_in(folder: Path) -> CollectiveDecisions | None:
    """What the collective plan in an artefact folder says, None for a foreign file."""
    plan = plan_in(folder)
    return None if plan is None else plan.decisions


def symmetric_of(plan: Plan[CollectiveDecisions]) -> Shots | None:
    """How a runtime over symmetric memory is to carry the plan, None where its program is to run."""
    if is_in_switch(plan.decisions):
        return shots_of(plan.decisions)
    transport = plan.provenance.known.transport
    return None if transport is None else transport.symmetric


def in_switch_program(decisions: CollectiveDecisions) -> CollectiveProgram:
    """What stands for the program of a plan that a switch executes: the collective without any steps."""
    ranks = (RankProgram(1, 1, 0, ()),) * decisions.ranks
    return CollectiveProgram(
        name=f"{decisions.collective} in the switch",
        collective=decisions.collective,
        ranks=ranks,
        chunks_per_loop=1,
        channels=1,
        inplace=True,
        root=decisions.root,
    )


def cut_of(decisions: CollectiveDecisions | None) -> int:
    """Chunks of the program that are one part of an irregular collective."""
    return 1 if decisions is None else decisions.chunkup * decisions.instances


def require_average(dtype: torch.dtype) -> None:
    """Raises InputError for tensors that have no average here: truth values and complex numbers."""
    if dtype == torch.bool or dtype.is_complex:
        raise InputError(f"found op 'avg' of tensors of {dtype}, expected integers or floats")


class Carrier(Protocol):
    """Moves the chunks of one rank, and adds them up."""

    device: str
    """The type of the devices on which tensors lie."""

    def carry(self, buffers: dict[str, Tensor], width: int, op: str, elements: int) -> None:
        """Run the rank's part in flat buffers `i`, `o` and `s`, whose chunks have `width` elements, for a call whose
        parts have `elements`."""


class OnWire:
    """Actions on the CPU, over the wire of a group of `ranks`. `what` names the program, the same on all of them;
    `streams` is the number of the one over which each action sends to another host."""

    device = "cpu"

    def __init__(
        self, wire: RankWire, script: Sequence[Action], ranks: int, what: str, streams: Sequence[int] = ()
    ) -> None:
        self.wire = wire
        self.tables = WireScript(script, ranks, streams)
        self.what = text_digest(what)

    def carry(self, buffers: dict[str, Tensor], width: int, op: str, elements: int) -> None:
        # Calls of other sizes may have chunks of the same width.
        self.tables.run(self.wire, buffers, width, op, f"{self.what} {elements}")


class Executor:
    """See `executor`; `carrier` does what this rank does."""

    def __init__(self, program: CollectiveProgram, rank: int, carrier: Carrier, *, inplace: bool, cut: int = 1) -> None:
        self.program, self.rank, self.inplace, self.carrier = program, rank, inplace, carrier
        self.irregular = program.collective in UNSPECIFIED
        if self.irregular:
            own = program.ranks[rank]
            self.shape, self.part_chunks = Shape(own.input_chunks // cut, own.output_chunks // cut), cut
        else:
            self.shape, self.part_chunks = shape_of(program.collective, len(program.ranks)), program.part_chunks
        self.scratch = torch.empty(0)

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

        Raises InputError when the tensor cannot be cut or averaged, or `op` is unknown.
        """
        if op not in OPERATIONS:
            raise InputError(f"found op {op!r}, {meant(op, OPERATIONS)}")
        if op == "avg" and self.program.collective in REDUCING:
            require_average(tensor.dtype)
        if tensor.device.type != self.carrier.device or tensor.layout != torch.strided:
            found, where = f"a tensor of layout {tensor.layout} on {tensor.device}", self.carrier.device
            raise InputError(f"found {found}, expected a dense one on {'the CPU' if where == 'cpu' else where}")
        part = self._part(tensor, part)
        if out is not None:
            size = math.prod(self._result_shape(tensor, part))
            if (out.dtype, out.numel(), out.device) != (tensor.dtype, size, tensor.device):
                found = f"{out.numel()} elements of {out.dtype} on {out.device}"
                raise InputError(f"found an out of {found}, expected {size} of {tensor.dtype} on {tensor.device}")
        if part == 0:
            return tensor.new_empty(self._result_shape(tensor, part)) if out is None else out
        width = math.ceil(part / self.part_chunks)
        averaged = op == "avg" and self.program.collective in REDUCING
        early = averaged and tensor.is_floating_point() and tensor.element_size() < 4
        given = tensor.detach() / len(self.program.ranks) if early else tensor.detach()
        buffers, direct = self._buffers(given, part, width, out)
        self.carrier.carry(buffers, width, op, part)
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
        buffers = {"i": given.view(-1), "o": made.view(-1), "s": self._scratch(tensor, width)}
        for source, target in self.program.ranks[self.rank].copies:
            _slice(buffers, ("o", target, 1), width).copy_(_slice(buffers, ("i", source, 1), width))
        return buffers, direct

    def _scratch(self, like: Tensor, width: int) -> Tensor:
        """Kept for the next call of the same size: new pages would cost more than the sums in them."""
        elements = self.program.ranks[self.rank].scratch_chunks * width
        if (self.scratch.numel(), self.scratch.dtype, self.scratch.device) != (elements, like.dtype, like.device):
            self.scratch = like.new_empty(elements)
        return self.scratch

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


def _slice(buffers: dict[str, Tensor], place: Range, width: int) -> Tensor:
    buffer, first, count = place
    return buffers[buffer][first * width : (first + count) * width]
