"""How long a checkpoint of a larger state takes: into the memory of two agents, or onto the local disk."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Any

from benchmarks.common import Row, Table, machine, show
from treadle.planner.passes.checkpoint.decisions import OwnPiece, StatePiece

RANKS, TENSORS, TENSOR, PIECE, REPEATS = 2, 16, 16 << 20, 8 << 20, 5
STATE = TENSORS * TENSOR
HOST, NONCE, NAMESPACE = "127.0.0.1", bytes(32), "disk"
WAYS = {
    "memory": "in memory: the own agent's, and the other's over TCP of one host",
    "file": "torch.save, then fsync",
    "dcp": "torch.distributed.checkpoint, which syncs its files",
    "file, no fsync": "torch.save without fsync: not on the disk yet",
}
HOW = (
    f"{RANKS} ranks at once, {STATE >> 20} MiB each; the slower rank counts; median, least and most of {REPEATS} in "
    "turn; each rank's agent is another process; on one host nothing goes over a network"
)


def tables() -> Iterator[Table]:
    """s for a checkpoint of 256 MiB a rank: in memory, twice, against torch.save and DCP on the local disk."""
    folder = Path(mkdtemp(prefix="treadle-disk-"))
    try:
        found = measured(folder)
    finally:
        shutil.rmtree(folder)
    yield Table(
        f"s of a checkpoint of {RANKS} x {STATE >> 20} MiB", [row(*each) for each in found.items()], (HOW, machine())
    )


def row(way: str, seconds: list[float]) -> Row:
    middle = median(seconds)
    return {
        "checkpoint": WAYS[way],
        "s": middle,
        "least": min(seconds),
        "most": max(seconds),
        "GB/s of all ranks": RANKS * STATE / middle / 1e9,
    }


def measured(folder: Path) -> dict[str, list[float]]:
    """For each way the seconds of its turns, each those of the slowest rank."""
    with ExitStack() as stack:
        agents = [started(stack, be_agent, number) for number in range(RANKS)]
        doors = [agent.recv() for agent in agents]
        peers = {number: (HOST, door[1]) for number, door in enumerate(doors)}
        for number, agent in enumerate(agents):
            agent.send({each: place for each, place in peers.items() if each != number})
            agent.recv()
        with socket.create_server((HOST, 0)) as free:
            port = free.getsockname()[1]
        ranks = [started(stack, be_rank, number, doors[number][0], port, folder) for number in range(RANKS)]
        found = [each.recv() for each in ranks]
    return {way: [max(turn) for turn in zip(*(each[way] for each in found), strict=True)] for way in WAYS}


def started(stack: ExitStack, work: Callable[..., None], *what: Any) -> Connection:
    """A process that works until the stack is left, and our end of its pipe."""
    here, there = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=work, args=(there, *what), daemon=True)
    process.start()
    there.close()
    stack.callback(process.join)
    stack.callback(process.terminate)
    stack.callback(here.close)
    return here


def be_agent(pipe: Connection, number: int) -> None:
    """Hold the states of two machines, until it is ended."""
    from treadle.runtime.checkpoint.holder import Holder

    with Holder((number, 1 - number), 1, STATE, namespace=NAMESPACE, nonce=NONCE, say=print) as holder:
        pipe.send((holder.local, holder.ports[HOST]))
        holder.announce(1, pipe.recv())
        pipe.send("ready")
        time.sleep(3600)


def be_rank(pipe: Connection, number: int, local: str, port: int, folder: Path) -> None:
    """Make each checkpoint in turn, and send the seconds."""
    import torch
    from torch import distributed

    from treadle.runtime.checkpoint.local import LocalAgent
    from treadle.runtime.checkpoint.sender import Sender

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"tcp://{HOST}:{port}", rank=number, world_size=RANKS)
    torch.manual_seed(number)
    state = {f"rank{number}.{each}": torch.randn(TENSOR // 4) for each in range(TENSORS)}
    offsets = range(0, STATE, PIECE)
    pieces = [StatePiece(span=0, copy=1, offset=offset, bytes=PIECE, buffer=0) for offset in offsets]
    own = [OwnPiece(message=None, offset=offset, bytes=PIECE) for offset in offsets]
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    with (
        LocalAgent(local, number, namespace=NAMESPACE, nonce=NONCE) as memory,
        Sender(memory, (number, 1 - number), pieces, own, window=4) as sender,
    ):
        for turn in range(REPEATS + 1):
            ways: dict[str, Callable[[], None]] = {
                "memory": lambda turn=turn: kept(sender, turn, list(state.values())),  # type: ignore[misc]
                "file": lambda: saved(state, folder / f"rank{number}.pt", synced=True),
                "dcp": lambda: distributed_save(state, folder / "dcp"),
                "file, no fsync": lambda: saved(state, folder / f"rank{number}.pt", synced=False),
            }
            for way, work in ways.items():
                os.sync()
                distributed.barrier()
                begun = time.perf_counter()
                work()
                if turn:  # in the first, memory and files are new
                    found[way].append(time.perf_counter() - begun)
                distributed.barrier()
    pipe.send(found)
    time.sleep(3600)  # until it is ended: a rank that ends first breaks what the other waits for


def kept(sender: Any, version: int, parts: list[Any]) -> None:
    """Until both holders have verified every piece."""
    sender.begin(version, parts)
    sender.release_own(None)
    sender.release(0)
    if sender.drain(60).failed:
        raise SystemExit(str(sender.lost))


def saved(state: Any, file: Path, *, synced: bool) -> None:
    import torch

    with file.with_suffix(".new").open("wb") as writing:
        torch.save(state, writing)
        writing.flush()
        if synced:
            os.fsync(writing.fileno())
    file.with_suffix(".new").replace(file)


def distributed_save(state: Any, folder: Path) -> None:
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    save(state, storage_writer=FileSystemWriter(folder, overwrite=True))


if __name__ == "__main__":
    show(tables(), "--json" in sys.argv)
