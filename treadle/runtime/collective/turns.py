"""Programs of one collective timed in turns on the CPU runtime, with a process of this machine for each rank.

A round runs every program once, each as many calls as one sample has, so that a machine that slows down slows them all.
The time of a program is the median over the rounds of that of its slowest rank.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import psutil
import torch
from torch import Tensor, distributed
from torch.distributed import ReduceOp

from treadle.codegen.collective import check as check_program
from treadle.codegen.collective.expected import expected_outputs
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.program import CollectiveProgram
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.scalars import MEBIBYTE, format_bytes
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.search.clock import Clock
from treadle.planner.search.in_turns import Measuring
from treadle.planner.search.top import Outcome
from treadle.runtime.collective.backends import backend_of
from treadle.runtime.collective.compare import (
    ComparedCall,
    calls_in_sample,
    input_of,
    reference,
    seconds_of,
    tolerance_of,
)
from treadle.runtime.collective.messages import REDUCING, cut_of, shape_of
from treadle.runtime.comparison import DTYPES, difference
from treadle.runtime.launch import launch

ROUNDS = 7
SHARE = 0.8
"""Share of the time that is left; the rest is for the check of the plan."""
DTYPE = "float32"
PROCESS_BYTES = 256 * MEBIBYTE
"""Memory of a process that has loaded PyTorch."""
COPIES = 5
"""Inputs and outputs that a process holds at once."""
WRONG = "its result differs from PyTorch's"


def measuring(
    top: int, hardware: Hardware, clock: Clock | None = None, where: str = "--measure"
) -> Measuring[CollectiveDecisions]:
    """Measures the `top` programs of least simulated time on this machine; once `clock` has run out no further one is
    begun after the first, and no further round. `where` is what errors name.

    Raises InputError for a profile whose programs do not run on the CPU runtime of one host, with what it costs, for a
    plan is priced for the runtime that carries it.
    """
    require_here(hardware, where)
    return Measuring(top, ready, partial(times_of, clock=clock or Clock()))


def require_here(hardware: Hardware, where: str) -> None:
    """Raises InputError for a profile that does not price what can be measured here, or has more ranks than this
    machine can hold."""
    cpu = hardware.transports.cpu
    if cpu is None or any(device.kind != "cpu" for device in hardware.devices):
        kind = "of GPUs" if any(device.kind == "gpu" for device in hardware.devices) else "without transports.cpu"
        raise InputError(
            f"found the profile {hardware.name} {kind}, expected one with the costs of the CPU runtime, on which "
            "programs are timed here; `treadle profile measure --backend cpu -o FILE` measures them",
            where=where,
        )
    if hardware.all_nodes > 1 and cpu.hosts != "one":
        text = f"found {hardware.all_nodes} hosts in {hardware.name}, expected one: all processes run on this machine"
        raise InputError(text, where=where)
    require_free(hardware.ranks, hardware.ranks * PROCESS_BYTES, where)


def ready(decisions: CollectiveDecisions) -> str:
    """Why the program of `decisions` does not run here, empty where it does."""
    try:
        found = check_program.check(lower(decisions), expected=expected_outputs(decisions))
    except (InputError, CheckFailed) as error:
        return str(error)
    return found[0] if found else ""


class _Turns(NamedTuple):
    programs: Sequence[CollectiveProgram]
    decisions: Sequence[CollectiveDecisions]
    elements: int
    """Those of a part, as `treadle.runtime.collective.compare` counts them."""
    ends: float
    """When no further program or round begins, on the clock of all processes."""


class _Turn(NamedTuple):
    """A program on one rank: seconds of a call by round, and by how much its result differs and may differ."""

    seconds: Sequence[float]
    error: float
    tolerance: float


def times_of(
    every: Sequence[CollectiveDecisions], clock: Clock, run: Callable[..., list[list[_Turn]]] = launch
) -> Mapping[int, Outcome]:
    """By place in `every`, plans of one collective and size: what a call of the program takes, as far as the time
    goes. `run` starts the processes.

    Raises InputError where this machine has no memory for them, and what `launch` raises.
    """
    programs = [lower(decisions) for decisions in every]
    require_memory(every, programs)
    ends = time.monotonic() + SHARE * clock.left_s
    by_rank = run(every[0].ranks, _worker, (_Turns(programs, every, elements_of(every[0]), ends),))
    return {place: outcome_of(turns) for place, turns in enumerate(zip(*by_rank, strict=True))}


def outcome_of(turns: Sequence[_Turn]) -> Outcome:
    """What the ranks found of one program."""
    slowest = [max(each) for each in zip(*(turn.seconds for turn in turns), strict=True)]
    wrong = max(turn.error for turn in turns) > max(turn.tolerance for turn in turns)
    return Outcome(max(1, round(1e9 * statistics.median(slowest))), WRONG if wrong else "")


def elements_of(decisions: CollectiveDecisions) -> int:
    """Elements of one part of a call of the planned size."""
    if decisions.demands is not None:
        size: float = decisions.chunk_bytes * decisions.chunkup
    else:
        size = decisions.input_bytes / shape_of(decisions.collective, decisions.ranks).inputs
    return max(1, round(size / DTYPES[DTYPE].itemsize))


def require_memory(every: Sequence[CollectiveDecisions], programs: Sequence[CollectiveProgram]) -> None:
    """Raises InputError where this machine cannot hold the processes and their buffers."""
    needed, ranks = 0.0, every[0].ranks
    for rank in range(ranks):
        sizes = [
            (found.chunk_bytes / found.instances, program.ranks[rank])
            for found, program in zip(every, programs, strict=True)
        ]
        buffers = max(chunk * (own.input_chunks + own.output_chunks) for chunk, own in sizes)
        scratch = sum(chunk * own.scratch_chunks for chunk, own in sizes)
        needed += PROCESS_BYTES + COPIES * buffers + scratch
    require_free(ranks, round(needed), "--measure")


def require_free(ranks: int, needed: int, where: str) -> None:
    """Raises InputError where this machine lacks the memory that the processes need."""
    free = psutil.virtual_memory().available
    if needed > free:
        text = f"{ranks} processes need about {format_bytes(needed)} to be timed, {format_bytes(free)} are free"
        raise InputError(text, where=where)


def _worker(rank: int, world: int, turns: _Turns) -> list[_Turn]:
    backend = backend_of("cpu")
    works: list[Callable[[], Tensor]] = []
    results: list[tuple[float, float]] = []
    data: Tensor | None = None
    expected: Tensor | None = None
    tolerance = 0.0
    for program, decisions in zip(turns.programs, turns.decisions, strict=True):
        if works and _over(turns.ends):
            break
        executor = backend.executor(program, rank, cut=cut_of(decisions))
        call = ComparedCall(program.name, program, decisions, executor, rank, backend.group, backend.device)
        if data is None:
            data = input_of(call, DTYPE, turns.elements)
            expected = reference(call, data, "sum", turns.elements)
            tolerance = tolerance_of(program, data, "sum" if program.collective in REDUCING else "", backend.group)
        part = turns.elements if executor.irregular else None
        found = executor(data.clone(), part=part)
        results.append((0.0 if expected is None else difference(found, expected), tolerance))
        works.append(partial(executor, data, out=torch.empty_like(found), part=part))
    counts = [calls_in_sample(work, backend.device) for work in works]
    seconds: list[list[float]] = [[] for _ in works]
    for number in range(ROUNDS):
        if number and _over(turns.ends):
            break
        for turn in range(len(works)):
            at = (number + turn) % len(works)  # another one is the first in each round
            seconds[at].append(seconds_of(works[at], counts[at], backend.device))
    return [_Turn(taken, *result) for taken, result in zip(seconds, results, strict=True)]


def _over(ends: float) -> bool:
    """Whether the time of any rank has passed: the same on all of them."""
    late: Any = torch.tensor([float(time.monotonic() > ends)])
    distributed.all_reduce(late, op=ReduceOp.MAX)
    return bool(late.item())
