"""Jobs of real processes, forked, over the addresses that a test gives them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from treadle.runtime.collective.wire.native import RankWire, library
from treadle.runtime.sockets import connect

ONE_HOST = ("127.0.0.1",) * 4
TWO_HOSTS = ("127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.2")
FOUR_HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")


def start(
    addresses: Sequence[str], work: Callable[[RankWire, Connection], None], streams: int = 1
) -> tuple[list[multiprocessing.process.BaseProcess], list[Connection]]:
    """A process for each rank, which runs `work` on its wire; and a pipe to each. Ranks of one address share a host;
    those of two have `streams` between them."""
    library()
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe() for _ in addresses]

    def run(rank: int) -> None:
        own = pipes[rank][1]

        def gather(value: Any) -> list[Any]:
            own.send(value)
            return list(own.recv())

        first, *more = [connect(rank, len(addresses), gather, addresses[rank]) for _ in range(streams)]
        work(RankWire(rank, first, more=more), own)

    processes = [context.Process(target=run, args=(rank,), daemon=True) for rank in range(len(addresses))]
    for process in processes:
        process.start()
    here = [pipe[0] for pipe in pipes]
    for _ in range(streams):
        met = [pipe.recv() for pipe in here]
        for pipe in here:
            pipe.send(met)
    return processes, here


def answers(pipes: Sequence[Connection], seconds: float) -> list[Any]:
    """What comes over each pipe within this time, None where nothing does."""
    ready = set()
    while len(ready) < len(pipes) and (more := set(wait([pipe for pipe in pipes if pipe not in ready], seconds))):
        ready |= more
    return [pipe.recv() if pipe in ready else None for pipe in pipes]
