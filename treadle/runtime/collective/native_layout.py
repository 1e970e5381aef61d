"""How tensors become the buffers of a program: parts, calls in place, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from treadle.codegen.collective.cuda.tables import CUT_AS_ONE
from treadle.codegen.collective.program import CollectiveProgram
from treadle.planner.errors import InputError

GATHERS, SCATTERS = ("allgather", "gather"), ("reducescatter", "scatter")


@dataclass(frozen=True)
class PlacedTensors:
    """One rank's memory: addresses of its buffers, and the tensor that the caller gets."""

    input: int
    output: int
    averaged: int
    """Elements at `output` that a mean is taken of."""
    result: Tensor
    keep: Tensor
    """What the addresses lie in, so that it lives as long."""
    copied: bool = False
    """Whether the result still has to be copied from `keep`."""

    def finish(self) -> Tensor:
        """The result, once the program has run."""
        return self.result.copy_(self.keep.view(self.result.shape)) if self.copied else self.result


def parts(program: CollectiveProgram, rank: int) -> tuple[int, int]:
    """Parts in the input and in the output of a rank; (0, n) where nothing goes in."""
    ranks = len(program.ranks)
    if program.collective in CUT_AS_ONE:
        return program.ranks[rank].input_chunks, program.ranks[rank].output_chunks
    rooted = rank == (program.root or 0)
    return {
        "allgather": (1, ranks),
        "reducescatter": (ranks, 1),
        "alltoall": (ranks, ranks),
        "gather": (1, ranks if rooted else 0),
        "scatter": (ranks if rooted else 0, 1),
    }.get(program.collective, (1, 1))


def part_elements(program: CollectiveProgram, ranks: Mapping[int, Tensor]) -> int:
    """Elements of a part, the same for every rank of `ranks`. Raises InputError when they do not agree."""
    found: dict[int, int] = {}
    for rank, tensor in ranks.items():
        count = parts(program, rank)[0]
        if count == 0:
            continue
        first = tensor.shape[0] if tensor.dim() else 0
        if count > 1 and (first % count if program.collective not in CUT_AS_ONE else tensor.numel() % count):
            raise InputError(
                f"found a tensor of shape {tuple(tensor.shape)} at rank {rank}, expected a first dimension that "
                f"{count} parts divide"
            )
        found[rank] = tensor.numel() // count
    if len(set(found.values())) > 1:
        raise InputError(f"found parts of {sorted(set(found.values()))} elements, expected ranks to agree")
    return next(iter(found.values()), 0)


def place(program: CollectiveProgram, rank: int, tensor: Tensor, part: int) -> PlacedTensors:
    """The buffers of `rank` for a call with `tensor`; the caller's tensor is written only by a program in place."""
    given, made = parts(program, rank)
    data = tensor.detach()
    averaged = part if program.collective != "reduce" or rank == (program.root or 0) else 0
    own = rank * part * data.element_size()
    shape = _shape(program, data, given, made, part)
    if program.outofplace:
        result, source = data.new_empty(shape), data.contiguous()
        return PlacedTensors(source.data_ptr(), result.data_ptr(), averaged, result, source)
    if program.collective in GATHERS and made:
        result = data.new_empty(shape)
        result.view(made, part)[rank] = data.reshape(-1)
        return PlacedTensors(result.data_ptr() + own, result.data_ptr(), averaged, result, result)
    if program.collective in SCATTERS and given:
        work = data.clone(memory_format=torch.contiguous_format)
        result = work.view(given, part)[rank].view(shape)
        return PlacedTensors(work.data_ptr(), work.data_ptr() + own, averaged, result, work)
    if program.collective in SCATTERS:
        result = data.new_empty(shape)
        return PlacedTensors(result.data_ptr() - own, result.data_ptr(), averaged, result, result)
    work = data.contiguous()
    return PlacedTensors(
        work.data_ptr(), work.data_ptr(), averaged, data, work, copied=work.data_ptr() != data.data_ptr()
    )


def _shape(program: CollectiveProgram, data: Tensor, given: int, made: int, part: int) -> tuple[int, ...]:
    """The shape of the result: the input's with another first dimension, or flat."""
    if given == made and program.collective not in CUT_AS_ONE:
        return tuple(data.shape)
    if not given or program.collective in CUT_AS_ONE or made == 0:
        return (made * part,)
    first, *rest = data.shape or (1,)
    return (first * made // given, *rest)
