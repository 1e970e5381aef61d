"""Collective programs beside the framework's own collectives: the same random data, results compared, both timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from msgspec.structs import replace
from torch import Tensor, distributed

from codegen import msccl_xml
from codegen.program import Program
from codegen.simulate_program import simulate_program
from planner.collective.algorithm import CollectiveDecisions
from treadle.runtime.collective import executor, shape_of
from treadle.runtime.launch import launch

DTYPES = {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64}


class Row(NamedTuple):
    """One program on one size. `elements` are counted as the collective does: of a rank's part for allgather,
    reducescatter and alltoall, of the whole buffer otherwise. Times in seconds, the slowest rank's median."""

    program: str
    dtype: str
    elements: int
    bytes: int
    """Of one rank's input."""
    max_error: float
    tolerance: float
    """0 where only data moves or numbers are whole: then results must be equal."""
    seconds: float
    reference_seconds: float
    predicted_seconds: float | None

    @property
    def good(self) -> bool:
        return self.max_error <= self.tolerance


def compare(
    programs: Mapping[str, Program],
    decisions: CollectiveDecisions | None,
    *,
    sizes: Sequence[int],
    dtypes: Sequence[str],
    repeats: int = 5,
    timeout: float | None = None,
) -> list[Row]:
    """Run all `programs` (of one number of ranks) with real processes on every size and dtype.

    `decisions` predicts times, on the hardware it was planned for. Raises what `launch` raises.
    """
    world = len(next(iter(programs.values())).ranks)
    texts = {name: msccl_xml.emit(program) for name, program in programs.items()}
    by_rank = launch(world, _worker, (texts, tuple(sizes), tuple(dtypes), repeats), timeout)
    rows = []
    for results in zip(*by_rank, strict=True):
        first: Row = results[0]
        rows.append(
            first._replace(
                max_error=max(row.max_error for row in results),
                tolerance=max(row.tolerance for row in results),
                seconds=max(row.seconds for row in results),
                reference_seconds=max(row.reference_seconds for row in results),
                predicted_seconds=_predicted(programs[first.program], decisions, first.bytes),
            )
        )
    return rows


def _predicted(program: Program, decisions: CollectiveDecisions | None, size: int) -> float | None:
    """The alpha-beta time with beta scaled from the planned size to this one."""
    if decisions is None:
        return None
    links = tuple(replace(link, beta_ns=round(link.beta_ns * size / decisions.input_bytes)) for link in decisions.links)
    return simulate_program(program, replace(decisions, links=links)).schedule.makespan / 1e9


def _worker(
    rank: int, world: int, texts: Mapping[str, str], sizes: Sequence[int], dtypes: Sequence[str], repeats: int
) -> list[Row]:
    rows = []
    for name, text in texts.items():
        program = msccl_xml.parse(text, name)
        run = executor(program, rank)
        for dtype in dtypes:
            for count in sizes:
                rows.append(_measure(name, program, run, rank, dtype, count, repeats))
    return rows


def _measure(
    name: str, program: Program, run: Callable[[Tensor], Tensor], rank: int, dtype: str, count: int, repeats: int
) -> Row:
    ranks = len(program.ranks)
    data = _random(count * shape_of(program.collective, ranks).inputs, dtype, seed=count * ranks + rank)
    expected = _reference(program, data)
    found = run(data.clone())
    error = 0.0
    if expected is not None:
        difference = (found.double() - expected.double()).abs() if found.shape == expected.shape else None
        error = float("inf") if difference is None else float(difference.max()) if difference.numel() else 0.0
        if not dtype.startswith("float") and not torch.equal(found, expected):
            error = max(error, 1.0)
    ours, theirs = [], []
    for _ in range(repeats):
        theirs.append(_timed(lambda: _reference(program, data)))
        ours.append(_timed(lambda: run(data.clone())))
    return Row(
        program=name,
        dtype=dtype,
        elements=count,
        bytes=data.numel() * data.element_size(),
        max_error=error,
        tolerance=_tolerance(program, data),
        seconds=statistics.median(ours),
        reference_seconds=statistics.median(theirs),
        predicted_seconds=None,
    )


def _timed(work: Callable[[], Any]) -> float:
    distributed.barrier()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _random(count: int, dtype: str, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.startswith("float"):
        return torch.randn(count, dtype=DTYPES[dtype], generator=generator)
    return torch.randint(-(2**40), 2**40, (count,), dtype=DTYPES[dtype], generator=generator)


def _tolerance(program: Program, data: Tensor) -> float:
    """Any two orders of summing R numbers differ by at most 2 (R - 1) eps times the sum of their absolute values."""
    if program.collective not in ("allreduce", "reducescatter", "reduce") or not data.is_floating_point():
        return 0.0
    if not data.numel():
        return 0.0
    total = data.abs().double()
    distributed.all_reduce(total)
    return float(2 * (len(program.ranks) - 1) * torch.finfo(data.dtype).eps * total.max())


def _reference(program: Program, data: Tensor) -> Tensor | None:
    """What torch.distributed returns, None on ranks to which a reduce promises nothing."""
    world, root = len(program.ranks), program.root or 0
    match program.collective:
        case "allgather":
            result = data.new_empty(data.numel() * world)
            distributed.all_gather_single(result, data)
        case "reducescatter":
            result = data.new_empty(data.numel() // world)
            distributed.reduce_scatter_single(result, data)
        case "alltoall":
            result = torch.empty_like(data)
            distributed.all_to_all_single(result, data)
        case "broadcast":
            result = data.clone()
            distributed.broadcast(result, src=root)
        case "reduce":
            result = data.clone()
            distributed.reduce(result, dst=root)
            return result if distributed.get_rank() == root else None
        case _:
            result = data.clone()
            distributed.all_reduce(result)
    return result
