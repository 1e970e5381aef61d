"""Programs of one collective timed in turns on the CPU runtime, with a process of this machine for each rank.

In each turn a program is called as often as one sample has calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from treadle.codegen.collective import check as check_program
from treadle.codegen.collective.expected import expected_outputs
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.program import CollectiveProgram
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.scalars import MEBIBYTE
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
    tolerance_of,
)
from treadle.runtime.collective.messages import REDUCING, cut_of, shape_of
from treadle.runtime.comparison import DTYPES, difference
from treadle.runtime.trial_ranks import WHERE, Ask, end_of, launched, require_cpus, require_few, require_memory
from treadle.runtime.turns import in_turns, is_over, slowest

DTYPE = "float32"
PROCESS_BYTES = 256 * MEBIBYTE
"""Memory of a process that has loaded PyTorch."""
COPIES = 5
"""Inputs and outputs that a process holds at once."""
WRONG = "its result differs from PyTorch's"


def collective_measuring(top: int, hardware: Hardware, clock: Clock) -> Measuring[CollectiveDecisions]:
    """Measures the `top` programs of least simulated time on this machine; once `clock` has run out no further one is
    begun after the first, and no further round.

    Raises InputError for a profile whose programs do not run on the CPU runtime of one host, with what it costs, for a
    plan is priced for the runtime that carries it.
    """
    require_here(hardware)
    ask = partial(launched, hardware.ranks)
    return Measuring(top, lambda rows: [times_of(row, clock, ask) for row in rows], ready, hardware.name)


def require_here(hardware: Hardware) -> None:
    """Raises InputError for a profile that does not price what can be measured here, or has more ranks than this
    machine can hold."""
    require_cpus(hardware)
    cpu = hardware.transports.cpu
    if cpu is None:
        raise InputError(
            f"found the profile {hardware.name} without transports.cpu, expected the costs of the CPU runtime, on "
            "which programs are timed here; `treadle profile measure --backend cpu -o FILE` measures them",
            where=WHERE,
        )
    if hardware.all_nodes > 1 and cpu.hosts != "one":
        text = f"found {hardware.all_nodes} hosts in {hardware.name}, expected one: all processes run on this machine"
        raise InputError(text, where=WHERE)
    require_few(hardware.ranks)
    require_memory(hardware.ranks * PROCESS_BYTES)


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
    """A program on one rank: ns of a call by round, and by how much its result differs and may differ."""

    ns: Sequence[float]
    error: float
    tolerance: float


def times_of(every: Sequence[CollectiveDecisions], clock: Clock, ask: Ask) -> Mapping[int, Outcome]:
    """By place in `every`, plans of one collective and size: what a call of the program takes, as far as the time
    goes.

    Raises InputError where this machine has no memory for the processes, and what `ask` raises.
    """
    programs = [lower(decisions) for decisions in every]
    require_memory(bytes_of(every, programs), "; --top measures fewer at once")
    by_rank: list[list[_Turn]] = ask(_worker, (_Turns(programs, every, elements_of(every[0]), end_of(clock)),))
    return {place: outcome_of(turns) for place, turns in enumerate(zip(*by_rank, strict=True))}


def outcome_of(turns: Sequence[_Turn]) -> Outcome:
    """What the ranks found of one program."""
    wrong = max(turn.error for turn in turns) > max(turn.tolerance for turn in turns)
    return slowest([[turn.ns] for turn in turns])[0]._replace(excluded=WRONG if wrong else "")


def elements_of(decisions: CollectiveDecisions) -> int:
    """Elements of one part of a call of the planned size."""
    if decisions.demands is not None:
        size: float = decisions.chunk_bytes * decisions.chunkup
    else:
        size = decisions.input_bytes / shape_of(decisions.collective, decisions.ranks).inputs
    return max(1, round(size / DTYPES[DTYPE].itemsize))


def bytes_of(every: Sequence[CollectiveDecisions], programs: Sequence[CollectiveProgram]) -> float:
    """What the processes and their buffers need."""
    needed = 0.0
    for rank in range(every[0].ranks):
        sizes = [
            (found.chunk_bytes / found.instances, program.ranks[rank])
            for found, program in zip(every, programs, strict=True)
        ]
        buffers = max(chunk * (own.input_chunks + own.output_chunks) for chunk, own in sizes)
        scratch = sum(chunk * own.scratch_chunks for chunk, own in sizes)
        needed += PROCESS_BYTES + COPIES * buffers + scratch
    return needed


def _worker(rank: int, world: int, turns: _Turns) -> list[_Turn]:
    backend = backend_of("cpu")
    works: list[Callable[[], Tensor]] = []
    results: list[tuple[float, float]] = []
    data: Tensor | None = None
    expected: Tensor | None = None
    tolerance = 0.0
    for program, decisions in zip(turns.programs, turns.decisions, strict=True):
        if works and is_over(turns.ends):
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
    times = in_turns([partial(_sample, work, calls) for work, calls in zip(works, counts, strict=True)], turns.ends)
    return [
        _Turn([ns / calls for ns in taken], *result)
        for taken, calls, result in zip(times, counts, results, strict=True)
    ]


def _sample(work: Callable[[], Tensor], calls: int) -> None:
    for _ in range(calls):
        work()
