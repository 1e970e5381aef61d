"""Collective programs compared with the framework's own collectives on the same random data, both timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import partial
from typing import Any, NamedTuple

import torch
from msgspec.structs import replace
from torch import Tensor, distributed
from torch.distributed import ReduceOp

from treadle.codegen.collective.msccl import xml
from treadle.codegen.collective.program import CollectiveProgram
from treadle.codegen.collective.simulate_cpu import simulate_cpu, terms_us
from treadle.codegen.collective.simulate_program import simulate_program
from treadle.codegen.collective.simulate_rounds import simulate_rounds
from treadle.codegen.collective.symbolic import UNSPECIFIED
from treadle.planner.documents.hardware import Hardware
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.collective.collectives import form_of
from treadle.runtime.collective.backends import Backend, backend_of
from treadle.runtime.collective.messages import REDUCING, Executor, cut_of
from treadle.runtime.comparison import DTYPES, Row, difference, random, rounding_of_sums
from treadle.runtime.joined import run_ranks
from treadle.runtime.torch_names import all_gather_single, reduce_scatter_single

SAMPLE_SECONDS, MOST_CALLS, WARM_CALLS = 0.01, 50, 2
OPS = {"sum": ReduceOp.SUM, "avg": ReduceOp.SUM, "min": ReduceOp.MIN, "max": ReduceOp.MAX}
"""Gloo has no average: the reference divides the sum, too."""


@dataclass(frozen=True, kw_only=True)
class Measured(Row):
    """`elements` are counted as the collective does: of a rank's part for allgather, reducescatter, alltoall, gather,
    scatter and irregular ones, of the whole buffer otherwise. Times are the slowest rank's median."""

    bytes: int
    """Bytes of one rank's input."""
    reference_seconds: float
    predicted_seconds: float | None = None
    """None without a plan, and where no rank has any data."""
    off: str | None = None
    """What most of the prediction consists of, where it differs from the measured time by more than a third."""


def compare(
    programs: Mapping[str, CollectiveProgram],
    decisions: CollectiveDecisions | None,
    *,
    sizes: Sequence[int],
    dtypes: Sequence[str],
    ops: Sequence[str] = ("sum",),
    repeats: int = 5,
    timeout: float | None = None,
    hardware: Hardware | None = None,
    backend: Backend = "cpu",
) -> list[Measured]:
    """Run all `programs` (of one number of ranks) with real processes on every size, dtype and op.

    `decisions` predicts times, on the hardware it was planned for, and says what an irregular collective must do;
    where that `hardware` is given and has costs of the runtime, they make the prediction. `backend` is the CPU runtime,
    or grouped messages of gloo or of NCCL, for which each process has a GPU. Messages of gloo have no prediction.
    Raises InputError for an irregular collective without decisions, MissingBackendError without NCCL or a GPU for each
    process, and what `launch` raises.
    """
    for name, program in programs.items():
        if program.collective in UNSPECIFIED and decisions is None:
            raise InputError(f"found collective {program.collective}, expected one that can be compared", where=name)
    world = len(next(iter(programs.values())).ranks)
    texts = {name: xml.emit(program) for name, program in programs.items()}
    jobs = _Jobs(texts, decisions, tuple(sizes), tuple(dtypes), tuple(ops), repeats, backend)
    by_rank = run_ranks(world, _worker, (jobs,), timeout)
    names = ("bytes", "max_error", "tolerance", "seconds", "reference_seconds")
    worst = ({name: max(getattr(row, name) for row in each) for name in names} for each in zip(*by_rank, strict=True))
    rows = [changed(row, **most) for row, most in zip(by_rank[0], worst, strict=True)]
    return [_predicted(row, programs[row.program], decisions, hardware, backend) for row in rows]


class _Jobs(NamedTuple):
    texts: Mapping[str, str]
    decisions: CollectiveDecisions | None
    sizes: Sequence[int]
    dtypes: Sequence[str]
    ops: Sequence[str]
    repeats: int
    backend: Backend


def _predicted(
    row: Measured,
    program: CollectiveProgram,
    decisions: CollectiveDecisions | None,
    hardware: Hardware | None,
    backend: Backend,
) -> Measured:
    if not row.bytes or backend == "gloo":  # no step has anything to do, or none has a price
        return row
    parts = cut_of(decisions) if program.collective in UNSPECIFIED else program.part_chunks
    size = row.elements * DTYPES[row.dtype].itemsize / parts * program.chunks_per_loop
    machine = None if hardware is None or hardware.ranks < len(program.ranks) else hardware
    if backend == "nccl" and machine is not None and machine.transports.nccl is not None:
        return changed(row, predicted_seconds=simulate_rounds(program, machine, size).time_us / 1e6)
    if backend == "nccl" or machine is None or machine.transports.cpu is None:
        return changed(row, predicted_seconds=predict(program, decisions, row.bytes))
    seconds = simulate_cpu(program, machine, size).time_us / 1e6
    off = None
    if seconds and abs(row.seconds / seconds - 1) > 1 / 3:
        terms = terms_us(program, machine, size)
        off = max(terms, key=terms.__getitem__)
    return changed(row, predicted_seconds=seconds, off=off)


def predict(program: CollectiveProgram, decisions: CollectiveDecisions | None, size: int) -> float | None:
    """The alpha-beta time with beta scaled from the planned size to this one."""
    if decisions is None:
        return None
    links = tuple(replace(link, beta_ns=round(link.beta_ns * size / decisions.input_bytes)) for link in decisions.links)
    return simulate_program(program, replace(decisions, links=links)).schedule.makespan / 1e9


def _worker(rank: int, world: int, jobs: _Jobs) -> list[Measured]:
    rows = []
    backend = backend_of(jobs.backend)
    for name, text in jobs.texts.items():
        program = xml.parse(text, name)
        run = backend.executor(program, rank, cut=cut_of(jobs.decisions))
        task = ComparedCall(name, program, jobs.decisions, run, rank, backend.group, backend.device)
        for dtype in jobs.dtypes:
            for op in jobs.ops if program.collective in REDUCING else ("",):
                rows += [_measure(task, dtype, op, count, jobs.repeats) for count in jobs.sizes]
    return rows


class ComparedCall(NamedTuple):
    """A program as this rank runs it, next to the framework's own collectives."""

    name: str
    program: CollectiveProgram
    decisions: CollectiveDecisions | None
    run: Executor
    rank: int
    group: Any
    """What the framework's collectives run on."""
    device: torch.device


def _measure(task: ComparedCall, dtype: str, op: str, count: int, repeats: int) -> Measured:
    data = input_of(task, dtype, count)

    def ours() -> Tensor:
        return task.run(data.clone(), op=op or "sum", part=count if task.run.irregular else None)

    def theirs() -> Tensor | None:
        return reference(task, data, op or "sum", count)

    expected, found = theirs(), ours()
    times: tuple[list[float], list[float]] = ([], [])
    works = _timed_works(task, data, op or "sum", count, expected, found)
    counts = [calls_in_sample(work, task.device) for work in works]
    for _ in range(repeats):
        for work, calls, taken in zip(works, counts, times, strict=True):
            taken.append(seconds_of(work, calls, task.device))
    return Measured(
        program=task.name,
        dtype=dtype,
        op=op,
        elements=count,
        bytes=data.numel() * data.element_size(),
        max_error=0.0 if expected is None else difference(found, expected),
        tolerance=tolerance_of(task.program, data, op, task.group),
        seconds=statistics.median(times[1]),
        reference_seconds=statistics.median(times[0]),
    )


def _timed_works(
    task: ComparedCall, data: Tensor, op: str, count: int, expected: Tensor | None, found: Tensor
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The framework's call and ours, both in buffers that are there before the clock starts."""
    same = task.program.collective in ("allreduce", "broadcast", "reduce")
    kept = data.clone() if same else None if expected is None else torch.empty_like(expected)
    mine = data.clone()
    out = None if found.data_ptr() == mine.data_ptr() or (task.run.inplace and same) else torch.empty_like(found)
    part = count if task.run.irregular else None
    return partial(reference, task, data, op, count, kept), partial(task.run, mine, op=op, out=out, part=part)


def calls_in_sample(work: Callable[[], Any], device: torch.device) -> int:
    """How many calls one sample has, the same on all ranks: short ones would mostly show who left the barrier last."""
    seconds_of(work, WARM_CALLS, device)
    slowest = torch.tensor([seconds_of(work, WARM_CALLS, device)])
    distributed.all_reduce(slowest, op=ReduceOp.MAX)
    return max(1, min(MOST_CALLS, int(SAMPLE_SECONDS / float(slowest))))


def seconds_of(work: Callable[[], Any], calls: int, device: torch.device) -> float:
    """Seconds of one of `calls` calls, one after the other."""
    distributed.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start) / calls


def input_of(task: ComparedCall, dtype: str, count: int) -> Tensor:
    """This rank's input. A part of an irregular collective is the same at all ranks that hold it."""
    world = len(task.program.ranks)
    if task.run.irregular:
        parts = [_random(count, dtype, seed) for seed, src in enumerate(_before(task)) if task.rank in src]
        return (torch.cat(parts) if parts else _random(0, dtype, 0)).to(task.device)
    return _random(count * task.run.shape.inputs, dtype, seed=count * world + task.rank).to(task.device)


def _random(count: int, dtype: str, seed: int) -> Tensor:
    return random(count, DTYPES[dtype], torch.Generator().manual_seed(seed))


def _before(task: ComparedCall) -> list[frozenset[int]]:
    """By part of an irregular collective: the ranks that hold it."""
    assert task.decisions is not None
    return list(form_of(replace(task.decisions, chunkup=1)).before)


def tolerance_of(program: CollectiveProgram, data: Tensor, op: str, group: Any) -> float:
    """By how much results may differ. A call of all ranks."""
    if op not in ("sum", "avg") or not data.numel():
        return 0.0
    total = data.abs().double()
    distributed.all_reduce(total, group=group)
    return rounding_of_sums(len(program.ranks), data.dtype, float(total.max()))


def reference(task: ComparedCall, data: Tensor, op: str, count: int, kept: Tensor | None = None) -> Tensor | None:
    """What torch.distributed returns, None on ranks to which a collective promises nothing. `kept` takes the result;
    where the call works in place it has the input."""
    program, rank, group = task.program, task.rank, task.group
    world, root = len(program.ranks), program.root or 0
    reduction = OPS[op]
    match program.collective:
        case "allgather":
            result = data.new_empty(data.numel() * world) if kept is None else kept
            all_gather_single(result, data, group=group)
        case "reducescatter":
            result = data.new_empty(data.numel() // world) if kept is None else kept
            reduce_scatter_single(result, data, op=reduction, group=group)
        case "alltoall":
            result = torch.empty_like(data) if kept is None else kept
            distributed.all_to_all_single(result, data, group=group)
        case "gather":
            rows = [torch.empty_like(data) for _ in range(world)] if rank == root else None
            distributed.gather(data, rows, group=group, group_dst=root)
            return None if rows is None else torch.cat(rows)
        case "scatter":
            result = data.new_empty(count)
            if count:
                parts = list(data.chunk(world)) if rank == root else None
                distributed.scatter(result, parts, group=group, group_src=root)
        case "broadcast":
            result = data.clone() if kept is None else kept
            distributed.broadcast(result, group=group, group_src=root)
        case "reduce":
            result = data.clone() if kept is None else kept
            distributed.reduce(result, op=reduction, group=group, group_dst=root)
            if rank != root:
                return None
        case "allreduce":
            result = data.clone() if kept is None else kept
            distributed.all_reduce(result, op=reduction, group=group)
        case _:
            return _sent_one_by_one(task, data, count)
    if op == "avg" and program.collective in REDUCING:
        return result / world if result.is_floating_point() else result.div(world, rounding_mode="trunc")
    return result


def _sent_one_by_one(task: ComparedCall, data: Tensor, count: int) -> Tensor:
    """An irregular collective: all_to_all_single where every part has one sender and one receiver in order, else a
    message for each part and receiver."""
    assert task.decisions is not None
    asked = form_of(replace(task.decisions, chunkup=1))
    rank, world = task.rank, task.decisions.ranks
    pairs = list(zip(asked.before, asked.after, strict=True))
    if task.program.collective in ("alltoallv", "sendrecv") or task.decisions.collective in ("alltoallv", "sendrecv"):
        sizes = [[0] * world for _ in range(2)]
        for (src,), (dst,) in pairs:
            sizes[0][dst] += count * (src == rank)
            sizes[1][src] += count * (dst == rank)
        result = data.new_empty(sum(sizes[1]))
        distributed.all_to_all_single(result, data, sizes[1], sizes[0], group=task.group)
        return result
    given = dict(
        zip((c for c, (src, _) in enumerate(pairs) if rank in src), data.split(count) if count else (), strict=False)
    )
    result = data.new_empty(count * sum(rank in dst for _, dst in pairs))
    made = dict(
        zip((c for c, (_, dst) in enumerate(pairs) if rank in dst), result.split(count) if count else (), strict=False)
    )
    works = []
    for chunk, (sources, targets) in enumerate(pairs if count else ()):
        if rank in sources and rank in targets:
            made[chunk].copy_(given[chunk])
        for target in sorted(targets - sources):
            if rank == target:
                works.append(distributed.irecv(made[chunk], group=task.group, group_src=min(sources), tag=chunk))
            elif rank == min(sources):
                works.append(distributed.isend(given[chunk], group=task.group, group_dst=target, tag=chunk))
    for work in works:
        if work is not None:
            work.wait()
    return result
