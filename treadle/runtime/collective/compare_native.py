"""Compiled programs compared with a plain reference: random data for all ranks, every size, dtype and operation."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from treadle.codegen.collective import order
from treadle.codegen.collective.cuda.tables import CUT_AS_ONE
from treadle.codegen.collective.program import CollectiveProgram
from treadle.codegen.collective.symbolic import SymbolicExecution
from treadle.planner.errors import InputError
from treadle.runtime.collective.native import CompiledProgram
from treadle.runtime.collective.native_layout import parts
from treadle.runtime.collective.symmetric import SymmetricProgram
from treadle.runtime.comparison import DTYPES, Row, difference, random, rounding_of_sums

SUMMED = ("float32", "float16", "bfloat16", "int32")
"""Data types of programs with sums; the others are only moved."""


def compare(
    libraries: Mapping[str, CompiledProgram | SymmetricProgram],
    *,
    sizes: Sequence[int],
    dtypes: Sequence[str],
    ops: Sequence[str],
    seeds: int,
    devices: Sequence[str] = ("cpu",),
) -> list[Row]:
    """Run every library on all sizes, data types and operations, `seeds` times each; ranks are dealt out to `devices`
    in equal blocks. A row has the elements of a part, the worst of all seeds and the median time of a call.

    Raises CheckFailed when a program hangs.
    """
    rows = []
    for name, library in libraries.items():
        reduces = library.reduces
        for dtype in dtypes:
            if reduces and dtype not in SUMMED:
                raise InputError(
                    f"found {dtype}, expected some of {','.join(SUMMED)}: {name} has sums", where="--dtypes"
                )
            for op in ops if reduces else ("-",):
                for size in sizes:
                    rows.append(_measure(name, library, dtype, op, size, seeds, devices))
    return rows


def _measure(
    name: str,
    library: CompiledProgram | SymmetricProgram,
    dtype: str,
    op: str,
    size: int,
    seeds: int,
    devices: Sequence[str],
) -> Row:
    error, allowed, seconds = 0.0, 0.0, []
    for seed in range(seeds):
        inputs = random_inputs(library.program, size, DTYPES[dtype], seed)
        expected, tolerance = reference(library.program, inputs, op)
        block = -(-len(inputs) // len(devices))
        given = [tensor.to(devices[rank // block], copy=True) for rank, tensor in enumerate(inputs)]
        start = time.perf_counter()
        found = library.run(given, "sum" if op == "-" else op, seed=seed)
        seconds.append(time.perf_counter() - start)
        error = max([error, *(difference(a.cpu(), b) for a, b in zip(found, expected, strict=True) if b is not None)])
        allowed = max(allowed, tolerance)
    return Row(
        program=name,
        dtype=dtype,
        op=op,
        elements=size,
        max_error=error,
        tolerance=allowed,
        seconds=sorted(seconds)[len(seconds) // 2],
    )


def random_inputs(program: CollectiveProgram, size: int, dtype: torch.dtype, seed: int) -> list[Tensor]:
    """The tensors of all ranks: `size` elements a part."""
    generator = torch.Generator().manual_seed(seed)
    counts = [size * parts(program, rank)[0] for rank in range(len(program.ranks))]
    return [random(count, dtype, generator) for count in counts]


def reference(program: CollectiveProgram, inputs: Sequence[Tensor], op: str) -> tuple[list[Tensor | None], float]:
    """What every rank must get, None where nothing is promised, and how far rounding may lead from it."""
    ranks, root = len(program.ranks), program.root or 0
    if program.collective in CUT_AS_ONE:
        return _replayed(program, inputs), 0.0
    if program.collective in ("allgather", "gather"):
        everything: Tensor | None = torch.cat(list(inputs))
        return [everything if program.collective == "allgather" or r == root else None for r in range(ranks)], 0.0
    if program.collective == "broadcast":
        return [inputs[root]] * ranks, 0.0
    if program.collective == "scatter":
        return [*inputs[root].view(ranks, -1)], 0.0
    if program.collective == "alltoall":
        return [torch.cat([tensor.view(ranks, -1)[rank] for tensor in inputs]) for rank in range(ranks)], 0.0
    combined = joined(torch.stack(list(inputs)), op)
    tolerance = 0.0
    if op in ("sum", "avg") and inputs[0].numel():
        total = float(torch.stack(list(inputs)).double().abs().sum(0).max())
        tolerance = rounding_of_sums(ranks, inputs[0].dtype, total)
    if program.collective == "reducescatter":
        return [*combined.view(ranks, -1)], tolerance
    return [combined if program.collective == "allreduce" or rank == root else None for rank in range(ranks)], tolerance


def joined(stack: Tensor, op: str) -> Tensor:
    """The rows of all ranks as one, in double precision; a mean of whole numbers is cut off towards zero."""
    wide = stack.double() if stack.is_floating_point() else stack.long()
    match op:
        case "min":
            return wide.amin(0)
        case "max":
            return wide.amax(0)
        case "avg" if stack.is_floating_point():
            return wide.sum(0) / len(stack)
        case "avg":
            return torch.div(wide.sum(0), len(stack), rounding_mode="trunc")
    return wide.sum(0)


def _replayed(program: CollectiveProgram, inputs: Sequence[Tensor]) -> list[Tensor | None]:
    """Chunk by chunk what a symbolic execution of the program says, for collectives that promise nothing themselves."""
    replay = SymbolicExecution(program, program.inplace and not program.outofplace)
    replay.follow(order.run(program, 8).sequence)
    size = next((tensor.numel() // parts(program, rank)[0] for rank, tensor in enumerate(inputs) if tensor.numel()), 0)
    results: list[Tensor | None] = []
    for rank in range(len(program.ranks)):
        chunks = []
        for chunk in range(parts(program, rank)[1]):
            values = replay.values.get(replay.address(rank, "o", chunk), ())
            if len(values) != 1:
                raise InputError(f"found output chunk {chunk} of gpu {rank} with no single origin", where=program.name)
            owner, index = values[0]
            chunks.append(inputs[owner][index * size : (index + 1) * size])
        results.append(torch.cat(chunks) if chunks else inputs[rank][:0])
    return results
