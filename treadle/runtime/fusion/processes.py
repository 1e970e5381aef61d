"""A schedule on several processes: one for each rank, arenas in memory that those of a host share.

`run` starts them on this machine. It makes the tensors, in memory that is shared too, fills and reads them; the
processes run. When one fails, dies or takes too long the others are ended, the error names the one that failed first,
and no memory is left behind. `run_rank` is what one of them does, however it was started.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from treadle.planner.errors import CheckFailed, InputError
from treadle.runtime.fusion.build import Compiled
from treadle.runtime.fusion.hosts import join
from treadle.runtime.fusion.rendezvous import Rendezvous, RendezvousAddress
from treadle.runtime.fusion.runs import RunReport, Runs
from treadle.runtime.fusion.session import HERE, Counted, FusionSession
from treadle.runtime.fusion.tensors import Handle, Tensors
from treadle.runtime.joined import StartedRank
from treadle.runtime.launch import launch
from treadle.runtime.sockets import Gather

HERE_ADDRESS = "127.0.0.1"
START_SECONDS, MOST_SECONDS = 60.0, 86_400.0


def run(
    compiled: Compiled, tensors: Tensors, runs: Runs | None = None, *, hosts: Sequence[str] | None = None
) -> RunReport:
    """Run `compiled`, of target process, on `tensors`, which must be shared.

    `hosts` are loopback addresses by rank: ranks at different ones exchange over TCP, as on different hosts.

    Raises CheckFailed naming what blocks where a schedule hangs, or the rank that died; LimitError when the
    processes take longer than all waits may; KeyboardInterrupt passes through.
    """
    return run_each([(compiled, tensors)], runs, hosts=hosts)[0]


def run_each(
    jobs: Sequence[tuple[Compiled, Tensors]], runs: Runs | None = None, *, hosts: Sequence[str] | None = None
) -> list[RunReport]:
    """Run several libraries of as many ranks, one after the other, on processes that are started once. Raises as `run`
    does."""
    runs = runs or Runs()
    for compiled, _ in jobs:
        if compiled.target != "process":
            raise InputError(f"found a library for {compiled.target}, expected one for process")
    limit = min(START_SECONDS + 2 * runs.timeout * runs.repeats * len(jobs), MOST_SECONDS) if runs.timeout else None
    work = [(compiled, tensors.handle, tensors.rows) for compiled, tensors in jobs]
    world = jobs[0][0].ranks
    at = hosts or [HERE_ADDRESS] * world
    done = launch(world, _rank, (work, RendezvousAddress(), runs, at), limit, joined=False)
    return [_report(each) for each in zip(*done, strict=True)]


def _rank(
    rank: int,
    world: int,
    jobs: Sequence[tuple[Compiled, Handle, int]],
    place: RendezvousAddress,
    runs: Runs,
    hosts: Sequence[str],
) -> list[tuple[list[float], Counted]]:
    rendezvous = Rendezvous(place, rank, world)
    done = []
    for compiled, handle, rows in jobs:
        tensors = Tensors(compiled.buffers, rows, handle=handle)
        done.append(run_rank(rank, compiled, tensors, rendezvous.exchange, runs, hosts[rank], watched=True))
    rendezvous.close()
    return done


def run_started(compiled: Compiled, tensors: Tensors, started: StartedRank, runs: Runs) -> RunReport:
    """Run the rank of this process on its rows of `tensors`; all that were started together call it. Raises as
    `run_rank` does."""
    return _report(started.gather(run_rank(started.rank, compiled, tensors, started.gather, runs)))


def _report(done: Sequence[tuple[list[float], Counted]]) -> RunReport:
    """What all ranks measured and counted."""
    seconds = tuple(max(times) for times in zip(*(times for times, _ in done), strict=True))
    return RunReport(seconds, tuple(counted for _, counted in done))


def run_rank(
    rank: int,
    compiled: Compiled,
    tensors: Tensors,
    gather: Gather,
    runs: Runs,
    address: str | None = None,
    *,
    watched: bool = False,
) -> tuple[list[float], Counted]:
    """Run the part of one rank on its rows of `tensors`; all ranks call it. Seconds of each run, and what it counted.
    `address` and `watched` are those of `join`.

    Raises CheckFailed naming what blocks where the schedule hangs, or the rank on another host that ended.
    """
    world = compiled.ranks
    session = FusionSession(compiled.path, world, {rank: HERE})
    join(session, rank, gather, address, watched=watched)
    seconds = []

    def meet() -> None:
        try:
            gather(None)
        except CheckFailed:
            session.require_all()
            raise

    for number in range(runs.repeats):
        session.bind({rank: tensors.addresses(number * world % tensors.rows + rank)}, keep=tensors)
        session.delays(runs.order + number if runs.order else 0)
        meet()
        start = time.perf_counter()
        session.run(seed=runs.seed, step=runs.step + number, timeout=runs.timeout)
        session.wait()
        seconds.append(time.perf_counter() - start)
    counted = session.counted(rank)
    meet()  # others may still read this rank's arena
    session.close()
    return seconds, counted
