"""A plan's servers and workers as processes of this machine: weights, times, and what was busy; and the same by an
allreduce of gloo and a local optimizer."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from treadle.codegen import emit
from treadle.codegen.python_form import require_form
from treadle.codegen.server.hook import FILE_NAME
from treadle.codegen.targets import PLAN_NAME
from treadle.host.cores import cores
from treadle.host.scratch import scratch
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import CheckFailed
from treadle.planner.passes import pass_of, require_pass
from treadle.planner.passes.server.balance import bottleneck
from treadle.planner.passes.server.chunking import chunks_of
from treadle.planner.passes.server.decisions import ServerDecisions
from treadle.planner.passes.server.layout import layout_of
from treadle.planner.passes.server.prices import COMPUTATION, parts_of_plan
from treadle.planner.passes.server.problem import SETTINGS_NUMBERS, STATES
from treadle.planner.passes.server.times import on_network
from treadle.runtime.launch import launch
from treadle.runtime.server.started import started_servers

if TYPE_CHECKING:
    from treadle.runtime.server.local_steps import LocalSteps
    from treadle.runtime.server.worker import Worker

BUSY = 0.85
"""What works for a larger share of the time may be the bottleneck."""


class Usage(NamedTuple):
    """Seconds of processors while the steps went on."""

    elapsed: float
    busiest_core: float
    """The busiest thread of the servers."""
    servers: float
    worker: float


class PricedHere(NamedTuple):
    time_ns: int
    bottleneck: str


class WorkerComparison(NamedTuple):
    """What one worker found; times in ns by step."""

    digest: str
    """That of its weights after all steps."""
    expected: str | None
    """What local steps come to, where this worker made them."""
    exchange_ns: list[int]
    gloo_ns: list[int]
    local_ns: list[int]
    """What of that the optimizer took."""
    usage: Usage


def run_folder(folder: Path, *, steps: int = 3, timeout: float | None = None) -> dict[str, Any]:
    """Serve the plan in `folder` and have all its workers exchange random gradients, as processes of this machine.

    Returned: `equal`, whether the weights of all workers are those of local steps with the mean gradient in the order
    of the workers, bit by bit (None where gradients are added as they arrive); `time_ns` of an exchange as planned, as
    predicted here, and measured (the slowest worker's, median over `steps`), and of an allreduce of gloo with a local
    step; the `bottleneck` alike; and `findings`, a sentence for each promise that did not hold.

    Raises InputError for a folder that is not as it was generated, CheckFailed for a plan that fails its check or a
    server that does not start, and what `launch` raises.
    """
    manifest, texts = emit.read(folder)
    require_form(manifest.target, texts[FILE_NAME], str(folder / FILE_NAME))
    plan = require_pass(store.load(folder / PLAN_NAME, Plan), ServerDecisions, str(folder / PLAN_NAME))
    decisions = plan.decisions
    if failed := pass_of(plan).findings(decisions):
        raise CheckFailed(f"{folder / PLAN_NAME}: not run, its check failed", tuple(failed))
    problem = decisions.problem
    with scratch() as kept:
        served = kept / "served"  # servers lock the folder of the access file, and `scratch` has locked its own
        served.mkdir()
        with started_servers(folder / PLAN_NAME, problem.servers, served) as (access, processes):
            workers = launch(problem.workers, _compare, (decisions, str(access), processes, steps), timeout)
    here = priced_here(decisions, cores())
    slowest = bottleneck(decisions)
    equal = _equal(workers) if problem.synchronous and not problem.arrival_order else None
    findings = [] if equal is not False else ["the weights are not those of local steps with the mean gradient"]
    return {
        "target": manifest.target,
        "carrier": problem.carrier,
        "workers": problem.workers,
        "servers": problem.servers,
        "optimizer": problem.optimizer,
        "steps": steps,
        "equal": equal,
        "time_ns": {
            "planned": decisions.time_ns,
            "here": here.time_ns,
            "measured": _slowest([worker.exchange_ns for worker in workers]),
            "gloo_measured": _slowest([worker.gloo_ns for worker in workers]),
            "local_measured": _slowest([worker.local_ns for worker in workers]),
        },
        "bottleneck": {
            "planned": "none" if slowest is None else slowest.part,
            "here": here.bottleneck,
            "measured": at_work(workers, cores()),
        },
        "busy": {**busy(workers), "of_cores": cores()},
        "findings": findings,
    }


def priced_here(decisions: ServerDecisions, shared_cores: int) -> PricedHere:
    """The plan where all its processes share the cores of one machine, and no links lie between them."""
    problem = replace(decisions.problem, shared_cores=shared_cores, worker_rate=None, core_rate=None, latency_ns=0)
    places = np.fromiter(chain.from_iterable(decisions.places), np.int64)
    chunks = chunks_of(problem, decisions.chunk_bytes)
    layout = layout_of(problem, chunks, places, decisions.policy, decisions.aggregator, decisions.two_level)
    parts = [each for each in parts_of_plan(layout) if each.part != COMPUTATION and not on_network(each.part)]
    slowest = max(parts, key=lambda each: each.time_ns)
    return PricedHere(slowest.time_ns, slowest.part)


def _equal(workers: Sequence[WorkerComparison]) -> bool:
    expected = next(worker.expected for worker in workers if worker.expected is not None)
    return all(worker.digest == expected for worker in workers)


def busy(workers: Sequence[WorkerComparison]) -> dict[str, float]:
    """Cores at work on average, of all processes here, and the share of time of the busiest core of the servers."""
    first = workers[0].usage
    total = first.servers + sum(worker.usage.worker for worker in workers)
    return {"cores": total / first.elapsed, "server_core": first.busiest_core / first.elapsed}


def at_work(workers: Sequence[WorkerComparison], there: int) -> str:
    """What was at work all the time: the cores that all processes share, a core of a server, else the links."""
    found = busy(workers)
    if found["cores"] >= BUSY * there:
        return "shared cores"
    return "core of a server" if found["server_core"] >= BUSY else "links"


def _slowest(times: Sequence[Sequence[int]]) -> int:
    """The median over steps of the time of the slowest worker."""
    return int(median(max(step) for step in zip(*times, strict=True)))


def _compare(
    rank: int, world: int, decisions: ServerDecisions, access: str, processes: list[int], steps: int
) -> WorkerComparison:
    import torch
    from torch import distributed

    from treadle.runtime.server.local_steps import LocalSteps
    from treadle.runtime.server.worker import Worker

    torch.set_num_threads(max(1, cores() // world))
    local, worker = LocalSteps(decisions), Worker(access, rank)
    _prepare(worker, local)
    exchange_ns, usage = _exchanges(worker, processes, steps)
    digest = _digest(worker.value(key) for key in range(len(local.keys)))
    distributed.barrier()
    worker.close()
    expected = None
    if rank == 0:
        expected = _digest(value.view(torch.uint8).numpy() for value in local.values(steps + 1))
    return WorkerComparison(digest, expected, exchange_ns, *_gloo_times(rank, local, steps), usage)


def _prepare(worker: Worker, local: LocalSteps) -> None:
    """Weights on the servers, gradients in the worker's buffers, and settings."""
    import torch

    from treadle.runtime.server.worker import ServerState
    from treadle.server.optimizers import numbers_of

    if worker.worker == 0:
        flat = torch.cat([each.detach() for each in local.parameters]).numpy()
        states = [np.zeros_like(flat) for _ in range(STATES[local.decisions.problem.optimizer])]
        worker.load(ServerState(flat, states, np.zeros(len(local.keys), np.uint64)))
    else:
        worker.await_first_load()
    for key in range(len(local.keys)):
        worker.gradient(key)[:] = local.gradient(worker.worker, key).view(torch.uint8).numpy()
    numbers = np.zeros((worker.layout.groups, SETTINGS_NUMBERS))
    if local.optimizer is not None:
        for told, group in zip(worker.layout.keys, local.group_of, strict=True):
            numbers[told.group] = numbers_of(local.optimizer, local.optimizer.param_groups[group])
    worker.settings(numbers)


def _exchanges(worker: Worker, processes: Sequence[int], steps: int) -> tuple[list[int], Usage]:
    """ns of exchanges, which end on all workers at about the same time, after one that is not counted."""
    from torch import distributed

    ends = []
    for step in range(steps + 1):
        if step == 0:
            distributed.barrier()
        for key in range(len(worker.layout.keys)):
            worker.push_pull(key)
        worker.finish()
        ends.append(time.perf_counter_ns())
        if step == 0:
            before, own = _threads(processes), time.process_time()
    after, own = _threads(processes), time.process_time() - own
    worked = [after[thread] - before.get(thread, 0.0) for thread in after]
    elapsed = (ends[-1] - ends[0]) / 1e9
    return [end - start for start, end in pairwise(ends)], Usage(elapsed, max(worked), sum(worked), own)


def _threads(processes: Iterable[int]) -> dict[str, float]:
    """Seconds of processors that each thread has taken so far, from the scheduler's own statistics."""
    folders = (each for process in processes for each in Path(f"/proc/{process}/task").iterdir())
    return {each.name: int((each / "schedstat").read_text().split()[0]) / 1e9 for each in folders}


def _gloo_times(rank: int, local: LocalSteps, steps: int) -> tuple[list[int], list[int]]:
    """ns of an allreduce of all gradients by gloo and a step of the local optimizer, and of that step alone."""
    import torch
    from torch import distributed

    types = {key.dtype for key in local.keys}
    flats = [
        torch.cat([local.gradient(rank, key) for key, each in enumerate(local.keys) if each.dtype == dtype])
        for dtype in sorted(types)
    ]
    for parameter in local.parameters:
        if parameter.grad is None:
            parameter.grad = torch.randn_like(parameter)
    whole, alone = [], []
    for _ in range(steps + 1):
        distributed.barrier()
        start = time.perf_counter_ns()
        for flat in flats:
            distributed.all_reduce(flat)
            flat.div_(local.decisions.problem.workers)
        middle = time.perf_counter_ns()
        if local.optimizer is not None:
            local.optimizer.step()
        end = time.perf_counter_ns()
        whole.append(end - start)
        alone.append(end - middle)
    return whole[1:], alone[1:]


def _digest(parts: Iterable[NDArray[np.uint8]]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part.data)
    return found.hexdigest()
