"""A schedule on several processes of this machine: one for each rank, tensors and arenas in memory that they share.

The parent makes the tensors, fills them and reads them; the processes run. When one fails, dies or takes too long the
others are ended, the error names the one that failed first, and no memory is left behind.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from treadle.planner.errors import InputError
from treadle.runtime.fusion.build import Compiled
from treadle.runtime.fusion.rendezvous import Rendezvous, RendezvousAddress
from treadle.runtime.fusion.runs import RunReport, Runs
from treadle.runtime.fusion.session import HERE, Counted, FusionSession
from treadle.runtime.fusion.tensors import Handle, Tensors
from treadle.runtime.launch import launch

START_SECONDS, MOST_SECONDS = 60.0, 86_400.0


def run(compiled: Compiled, tensors: Tensors, runs: Runs | None = None) -> RunReport:
    """Run `compiled`, of target process, on `tensors`, which must be shared.

    Raises CheckFailed naming what blocks where a schedule hangs, or the rank that died; LimitError when the
    processes take longer than all waits may; KeyboardInterrupt passes through.
    """
    return run_each([(compiled, tensors)], runs)[0]


def run_each(jobs: Sequence[tuple[Compiled, Tensors]], runs: Runs | None = None) -> list[RunReport]:
    """Run several libraries of as many ranks, one after the other, on processes that are started once. Raises as `run`
    does."""
    runs = runs or Runs()
    for compiled, _ in jobs:
        if compiled.target != "process":
            raise InputError(f"found a library for {compiled.target}, expected one for process")
    limit = min(START_SECONDS + 2 * runs.timeout * runs.repeats * len(jobs), MOST_SECONDS) if runs.timeout else None
    work = [(compiled, tensors.handle, tensors.rows) for compiled, tensors in jobs]
    done = launch(jobs[0][0].ranks, _rank, (work, RendezvousAddress(), runs), limit, joined=False)
    reports = []
    for each in zip(*done, strict=True):
        seconds = tuple(max(times) for times in zip(*(times for times, _ in each), strict=True))
        reports.append(RunReport(seconds, tuple(counted for _, counted in each)))
    return reports


def _rank(
    rank: int, world: int, jobs: Sequence[tuple[Compiled, Handle, int]], place: RendezvousAddress, runs: Runs
) -> list[tuple[list[float], Counted]]:
    rendezvous = Rendezvous(place, rank, world)
    done = [_job(rank, world, compiled, handle, rows, rendezvous, runs) for compiled, handle, rows in jobs]
    rendezvous.close()
    return done


def _job(
    rank: int, world: int, compiled: Compiled, handle: Handle, rows: int, rendezvous: Rendezvous, runs: Runs
) -> tuple[list[float], Counted]:
    tensors = Tensors(compiled.buffers, rows, handle=handle)
    session = FusionSession(compiled.path, world, {rank: HERE})
    for other, arena in enumerate(rendezvous.exchange(session.share(rank))):
        if other != rank:
            session.attach(other, arena)
    seconds = []
    for number in range(runs.repeats):
        session.bind({rank: tensors.addresses(number * world % rows + rank)}, keep=tensors)
        session.delays(runs.order + number if runs.order else 0)
        rendezvous.exchange()
        start = time.perf_counter()
        session.run(seed=runs.seed, step=runs.step + number, timeout=runs.timeout)
        session.wait()
        seconds.append(time.perf_counter() - start)
    counted = session.counted(rank)
    rendezvous.exchange()  # others may still read this rank's arena
    session.close()
    return seconds, counted
