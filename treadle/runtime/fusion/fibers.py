"""A schedule on fibers: all threads of all ranks in this process, in an order that a seed chooses."""

from __future__ import annotations

import time

from treadle.planner.errors import InputError
from treadle.runtime.fusion.build import Compiled
from treadle.runtime.fusion.runs import RunReport, Runs
from treadle.runtime.fusion.session import HERE, FusionSession
from treadle.runtime.fusion.tensors import Tensors


def run(
    compiled: Compiled, tensors: Tensors, runs: Runs | None = None, *, threads: int = 0, blocks: int = 0
) -> RunReport:
    """Run `compiled` on `tensors`; of target process its ranks are threads of this process.

    `threads` of a block and `blocks` of a kernel that takes any number: 0 for few. Raises CheckFailed naming what
    blocks where a schedule hangs.
    """
    if compiled.target == "cuda":
        raise InputError("found a library for cuda, expected one for fibers")
    runs = runs or Runs()
    every = range(compiled.ranks)
    session = FusionSession(compiled.path, compiled.ranks, dict.fromkeys(every, HERE), threads=threads, blocks=blocks)
    seconds = []
    try:
        for number in range(runs.repeats):
            first = number * compiled.ranks % tensors.rows
            session.bind({rank: tensors.addresses(first + rank) for rank in every}, keep=tensors)
            start = time.perf_counter()
            session.run(seed=runs.seed, step=runs.step + number, order=runs.order + number, timeout=runs.timeout)
            session.wait()
            seconds.append(time.perf_counter() - start)
        return RunReport(tuple(seconds), tuple(session.counted(rank) for rank in every))
    finally:
        session.close()
