"""A schedule on several processes of this machine: one for each rank, tensors and arenas in memory that they share.

The parent makes the tensors, fills them and reads them; the processes run. When one fails, dies or takes too long the
others are ended, the error names the one that failed first, and no memory is left behind.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from planner.errors import InputError
from treadle.runtime.fusion.build import Compiled
from treadle.runtime.fusion.meeting import Meeting, Place
from treadle.runtime.fusion.session import HERE, Counted, Session
from treadle.runtime.fusion.tensors import Handle, Tensors
from treadle.runtime.launch import launch

TIMEOUT_SECONDS = 60.0
START_SECONDS = 30.0


@dataclass(frozen=True)
class Run:
    """How often and how a schedule runs. Each run has the step of dropout of the one before plus 1.

    A wait of more than `timeout` seconds is taken for a deadlock. `delays` above 0 chooses random pauses, for tests.
    """

    repeats: int = 1
    seed: int = 0
    step: int = 0
    timeout: float = TIMEOUT_SECONDS
    delays: int = 0


@dataclass(frozen=True)
class Report:
    """Seconds of each run, of the rank that took longest, and by rank what was counted, in a library that counts."""

    seconds: tuple[float, ...]
    counted: tuple[Counted, ...]


def run(compiled: Compiled, tensors: Tensors, how: Run | None = None) -> Report:
    """Run `compiled`, of target process, on `tensors`, which must be shared.

    Raises CheckFailed naming what waits in vain where a schedule hangs, or the rank that died; LimitError when the
    processes take longer than all waits may; KeyboardInterrupt passes through.
    """
    how = how or Run()
    if compiled.target != "process":
        raise InputError(f"found a library for {compiled.target}, expected one for process")
    limit = START_SECONDS + 2 * how.timeout * how.repeats
    done = launch(tensors.ranks, _rank, (compiled, tensors.handle, Place(), how), limit, joined=False)
    seconds = tuple(max(times) for times in zip(*(times for times, _ in done), strict=True))
    return Report(seconds, tuple(counted for _, counted in done))


def _rank(
    rank: int, world: int, compiled: Compiled, handle: Handle, place: Place, how: Run
) -> tuple[list[float], Counted]:
    meeting = Meeting(place, rank, world)
    tensors = Tensors(compiled.buffers, world, handle=handle)
    session = Session(compiled.path, world, {rank: HERE})
    session.delays(how.delays)
    for other, arena in enumerate(meeting.exchange(session.share(rank))):
        if other != rank:
            session.attach(other, arena)
    session.bind({rank: tensors.addresses(rank)}, keep=tensors)
    seconds = []
    for number in range(how.repeats):
        meeting.exchange()
        start = time.perf_counter()
        session.run(seed=how.seed, step=how.step + number, timeout=how.timeout)
        session.wait()
        seconds.append(time.perf_counter() - start)
    counted = session.counted(rank)
    meeting.exchange()
    session.close()
    meeting.close()
    return seconds, counted
