"""Processes on hosts of a lab that are started, killed, stopped and cut off one at a time.

They are forked, so that a rank need not import PyTorch again each time it starts.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path

from treadle.lab.namespaces import enter
from treadle.lab.processes import SIGNAL_AT_DEATH_OF_PARENT
from treadle.lab.state import Lab


@dataclass(eq=False)
class Started:
    """A process on a host, the leader of its group."""

    host: int
    log: Path
    process: ForkProcess

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def code(self) -> int | None:
        """Its exit code, the negative number of the signal that killed it, or None while it runs."""
        return self.process.exitcode

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """Kill it and what it has started, also where it is stopped, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.process.join()


def start(lab: Lab, host: int, log: Path, work: Callable[[], None]) -> Started:
    """Let a fork of this process do `work` on a host of the lab; what it prints is added to `log`."""
    files, parent = lab.open(host), os.getpid()

    def inside() -> None:
        os.setsid()
        ctypes.CDLL(None).prctl(SIGNAL_AT_DEATH_OF_PARENT, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        folder = Path.cwd()
        for file in files:
            enter(file)
        os.chdir(folder)  # entering a view of the file system ends in its root
        written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream in (1, 2):
            os.dup2(written, stream)
        code = 1
        try:
            work()
            code = 0
        except Exception:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)  # threads of libraries that were loaded before the fork need not end

    process = get_context("fork").Process(target=inside)
    process.start()
    for file in files:
        os.close(file)
    return Started(host, log, process)


def run_command(command: Sequence[str], variables: Mapping[str, str] | None = None) -> Callable[[], None]:
    """Work for `start`: another program in place of the fork, with variables added to its environment."""
    return lambda: os.execvpe(command[0], list(command), {**os.environ, **(variables or {})})


def cut(lab: Lab, host: int, *, connected: bool = False) -> None:
    """Take the cable of a host's interfaces out, or put it back; peers see no end of their streams."""
    names = [interface.name for interface in lab.layout.hosts[host].interfaces]

    def switch() -> None:
        from pyroute2 import IPRoute

        with IPRoute() as route:
            for name in names:
                (index,) = route.link_lookup(ifname=name)
                route.link("set", index=index, state="up" if connected else "down")

    done = start(lab, host, Path(os.devnull), switch)
    done.process.join()
    if done.code:
        raise RuntimeError(f"cannot change the interfaces of host {host}")
