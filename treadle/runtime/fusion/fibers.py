"""A schedule on fibers: all threads of all ranks in this process, in an order that a seed chooses."""

from __future__ import annotations

from collections.abc import Sequence

from planner.errors import InputError
from treadle.runtime.fusion.build import Compiled
from treadle.runtime.fusion.session import HERE, Counted, Session
from treadle.runtime.fusion.tensors import Tensors


def open_session(compiled: Compiled, tensors: Tensors, *, threads: int = 0, blocks: int = 0) -> Session:
    """All ranks of `compiled`, on `tensors`. Target fibers, or process: ranks are then threads of this process."""
    if compiled.target == "cuda":
        raise InputError("found a library for cuda, expected one for fibers")
    every = range(compiled.ranks)
    session = Session(compiled.path, compiled.ranks, dict.fromkeys(every, HERE), threads=threads, blocks=blocks)
    session.bind({rank: tensors.addresses(rank) for rank in every}, keep=tensors)
    return session


def run(
    compiled: Compiled, tensors: Tensors, *, orders: Sequence[int] = (0,), seed: int = 0, step: int = 0
) -> list[Counted]:
    """One run for each of `orders`, of which each has the next step of dropout; what each rank counted.

    Raises CheckFailed naming what waits in vain where a schedule hangs.
    """
    session = open_session(compiled, tensors)
    try:
        for number, order in enumerate(orders):
            session.run(seed=seed, step=step + number, order=order)
            session.wait()
        return [session.counted(rank) for rank in range(compiled.ranks)]
    finally:
        session.close()
