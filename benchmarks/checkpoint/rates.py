"""How fast a state gets from the memory of a rank into that of holders, on this machine only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from statistics import median

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import Table, machine, show
from treadle.planner.passes.checkpoint.decisions import OwnPiece, StatePiece
from treadle.runtime.checkpoint.frames import crc32c
from treadle.runtime.checkpoint.holder import Holder
from treadle.runtime.checkpoint.local import LocalAgent, fetched
from treadle.runtime.checkpoint.sender import Sender

STATE, PIECE, REPEATS = 256 << 20, 8 << 20, 7
HOST, NONCE = "127.0.0.1", bytes(32)
OFFSETS = range(0, STATE, PIECE)
PIECES = [StatePiece(span=0, copy=1, offset=offset, bytes=PIECE, buffer=0) for offset in OFFSETS]
OWN = [OwnPiece(message=0, offset=offset, bytes=PIECE) for offset in OFFSETS]


def tables() -> Iterator[Table]:
    """GB/s of a state from memory to memory: into shared memory, over TCP, read again; next to a plain copy."""
    state = np.random.default_rng(0).integers(0, 256, STATE, np.uint8)
    other = np.zeros_like(state)
    with ExitStack() as stack:
        holders = [stack.enter_context(_holder(*hosted)) for hosted in ((0, 1), (1, 0))]
        for holder in holders:
            holder.announce(1, {each.machine: (HOST, each.ports[HOST]) for each in holders if each is not holder})
        agent = stack.enter_context(LocalAgent(holders[0].local, 0, namespace="rates", nonce=NONCE))
        sender = stack.enter_context(Sender(agent, (0, 1), PIECES, OWN, window=4))
        turns = [_checkpoint(sender, turn, state) for turn in range(REPEATS)]
        last = REPEATS - 1
        seconds = {
            "memcpy": _seconds(lambda: np.copyto(other, state)),
            "CRC-32C": _seconds(lambda: crc32c(state)),
            "own copy: summed, copied into the agent's memory": median(own for own, _ in turns),
            "copy on another agent: summed, TCP over lo, summed there": median(sent for _, sent in turns),
            "verified by its holder": _seconds(lambda: holders[1].memory.verify(last)),
            "loaded by its rank: verified, summed there": _seconds(lambda: agent.load(last)),
            "fetched from another agent: verified, TCP over lo, summed here": _seconds(lambda: fetched(agent, 1, last)),
        }
    rows = [{"path": path, "GB/s": STATE / each / 1e9} for path, each in seconds.items()]
    yield Table(f"{STATE >> 20} MiB in pieces of {PIECE >> 20} MiB, median of {REPEATS}", rows, (machine(),))


def _holder(*hosted: int) -> Holder:
    return Holder(hosted, 1, STATE, namespace="rates", nonce=NONCE, say=print)


def _checkpoint(sender: Sender, version: int, state: NDArray[np.uint8]) -> tuple[float, float]:
    """Seconds of the own copy, then of the one on the other agent."""
    begun = time.perf_counter()
    sender.begin(version, [state])
    sender.release_own(0)
    while np.count_nonzero(sender.times()["taken"]) < len(OWN):
        time.sleep(0.0005)
    copied = time.perf_counter()
    if sender.drain(60).failed:
        raise SystemExit(str(sender.lost))
    return copied - begun, time.perf_counter() - copied


def _seconds(work: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return median(times)


if __name__ == "__main__":
    show(tables(), False)
