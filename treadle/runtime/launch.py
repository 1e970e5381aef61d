"""Several processes that work as one: `launch` starts them, joins them into a gloo group, and lets none outlive it.

The parent watches every child. When one fails the rest are killed within a second and the error names the rank that
failed first. A child dies with its parent, even when the parent is killed.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from treadle.host.loopback import stay_on_loopback
from treadle.host.scratch import scratch
from treadle.planner.endings import ending
from treadle.planner.errors import CheckFailed, LimitError, TreadleError
from treadle.runtime.sockets import named_interface

GRACE_SECONDS = 1.0
"""Time after the first failure for other ranks to report, so that the cause can be named."""
JOB, STORE = "job.pickle", "store"
GROUP_DAYS = 1
"""How long a message may be waited for: ranks may compute for long, and the parent notices the dead ones."""


def launch(
    world: int,
    function: Callable[..., Any],
    args: tuple[Any, ...] = (),
    timeout: float | None = None,
    *,
    joined: bool = True,
    on_message: Callable[[Any], None] | None = None,
) -> list[Any]:
    """Results of `function(rank, world, *args)`, run in `world` processes that share a gloo process group, by rank.

    Processes that are not `joined` have no group and start without PyTorch. `on_message` is called with what they
    `send`; then `timeout` is the time without any message.

    `function` must be importable and results picklable. Raises InputError for a group over an interface that
    GLOO_SOCKET_IFNAME names and that is not there, the TreadleError of a rank as it is, CheckFailed naming
    the rank for any other failure or death, LimitError after `timeout` seconds; KeyboardInterrupt passes through. In
    every case no process is left behind.
    """
    if joined:
        named_interface()
    context = multiprocessing.get_context("spawn")
    ranks: list[_Rank] = []
    with scratch() as folder:
        # By a file: a pipe to a child that dies while it starts would block once it is full.
        (folder / JOB).write_bytes(pickle.dumps((function, args, joined)))
        try:
            # Ctrl-C is the parent's business: children inherit the blocked signal, the parent loses none. The resource
            # tracker of multiprocessing unblocks it when it starts, so that comes first.
            resource_tracker.ensure_running()
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                for number in range(world):
                    receive, send = context.Pipe(duplex=False)
                    process = context.Process(
                        target=_child, args=(number, world, folder, send, os.getpid()), name=f"treadle-rank-{number}"
                    )
                    ranks.append(_Rank(number, process, receive))
                    process.start()
                    send.close()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return _results(ranks, timeout, on_message)
        finally:
            for rank in ranks:
                rank.end()


def send(message: Any) -> None:
    """Hand `message` from a rank to `on_message` of the process that launched it."""
    _to_parent[0].send_bytes(pickle.dumps(("message", message)))


_to_parent: list[Connection] = []


@dataclass(eq=False)
class _Rank:
    """A child as the parent sees it."""

    number: int
    process: Any
    pipe: Connection
    reported: bool = False
    result: Any = None
    failure: Exception | None = None
    messages: list[Any] = field(default_factory=list)

    def receive(self) -> None:
        """Take in messages and the report, or the end of a process that never made one."""
        with suppress(EOFError, OSError):
            while not self.reported and self.pipe.poll():
                kind, value = pickle.loads(self.pipe.recv_bytes())
                self.reported = kind != "message"
                if kind == "message":
                    self.messages.append(value)
                else:
                    self.result, self.failure = (value, None) if kind == "result" else (None, value)
        if not self.reported and not self.process.is_alive():
            how = ending(self.process.exitcode)
            self.failure = CheckFailed(f"rank {self.number} {how}; the other ranks were stopped")

    def end(self) -> None:
        if self.process.pid is None:
            return
        if self.process.is_alive():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()
        self.process.join()
        self.process.close()
        self.pipe.close()


def _results(ranks: list[_Rank], timeout: float | None, on_message: Callable[[Any], None] | None) -> list[Any]:
    end = None if timeout is None else time.monotonic() + timeout
    failed: list[_Rank] = []
    while not failed and not all(rank.reported for rank in ranks):
        left = None if end is None else end - time.monotonic()
        if left is not None and left <= 0:
            late = ", ".join(str(rank.number) for rank in ranks if not rank.reported)
            raise LimitError(f"rank {late} did not finish within {timeout:g} s; all ranks were stopped")
        failed = _listen(ranks, left)
        for rank in ranks:
            while on_message is not None and rank.messages:
                on_message(rank.messages.pop(0))
                end = None if timeout is None else time.monotonic() + timeout
    if failed:
        grace = time.monotonic() + GRACE_SECONDS
        while all(rank.reported for rank in failed) and (left := grace - time.monotonic()) > 0 and _silent(ranks):
            failed += [rank for rank in _listen(ranks, left) if rank not in failed]
        cause = next((rank for rank in failed if not rank.reported), failed[0]).failure
        assert cause is not None
        raise cause
    for rank in ranks:
        rank.process.join(GRACE_SECONDS)
    return [rank.result for rank in ranks]


def _silent(ranks: list[_Rank]) -> list[_Rank]:
    return [rank for rank in ranks if not rank.reported and rank.failure is None]


def _listen(ranks: list[_Rank], seconds: float | None) -> list[_Rank]:
    """Wait for something to happen; returns the ranks that have failed so far."""
    silent = _silent(ranks)
    ready = set(wait([source for rank in silent for source in (rank.pipe, rank.process.sentinel)], seconds))
    for rank in silent:
        if ready.intersection((rank.pipe, rank.process.sentinel)):
            rank.receive()
    return [rank for rank in ranks if rank.failure is not None]


def _child(rank: int, world: int, folder: Path, pipe: Connection, parent: int) -> None:
    os.setpgid(0, 0)
    die_with(parent)
    try:
        function, args, joined = pickle.loads((folder / JOB).read_bytes())
        work = partial(_joined, folder / STORE, function) if joined else function
        _to_parent.append(pipe)
        report = ("result", work(rank, world, *args))
    except TreadleError as error:
        report = ("failure", error)
    except BaseException as error:
        if os.environ.get("TREADLE_DEBUG", "0") not in ("", "0"):
            traceback.print_exc()
        text = " ".join(str(error).split())
        report = ("failure", CheckFailed(f"rank {rank} failed: {type(error).__name__}: {text}"))
    with suppress(OSError):  # the parent is gone
        pipe.send_bytes(pickle.dumps(report))
    pipe.close()
    # Without the clean-up of a dying group, which would wait for ranks that are not there any more.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if report[0] == "result" else 1)


def _joined(store: Path, function: Callable[..., Any], rank: int, world: int, *args: Any) -> Any:
    from datetime import timedelta

    import torch
    from torch import distributed

    stay_on_loopback()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(days=GROUP_DAYS)
    )
    result = function(rank, world, *args)
    distributed.barrier()
    return result


def die_with(parent: int) -> None:
    """Ask Linux to kill this process when its parent ends (prctl PR_SET_PDEATHSIG)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
