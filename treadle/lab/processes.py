"""A process on a host of the lab: in the namespaces of that host, and ended with the process that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from treadle.lab.namespaces import enter
from treadle.lab.state import Lab
from treadle.planner.errors import InputError

SIGNAL_AT_DEATH_OF_PARENT = 1


@dataclass(eq=False)
class HostProcess:
    name: str
    process: subprocess.Popen[bytes]

    @property
    def stdout(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    @property
    def stderr(self) -> IO[bytes]:
        assert self.process.stderr is not None
        return self.process.stderr

    def poll(self) -> int | None:
        return self.process.poll()

    def stopped(self) -> int | None:
        """The signal that has stopped the process since the last call."""
        with suppress(ChildProcessError):
            if found := os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOHANG):
                return found.si_status
        return None

    def signal(self, number: int) -> None:
        """Send a signal to the process and its group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def end(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()
        self.stdout.close()
        self.stderr.close()


def start(lab: Lab, place: int, name: str, command: Sequence[str], variables: Mapping[str, str]) -> HostProcess:
    """Start `command` on host `place` with `variables` added to the environment. Raises InputError if it cannot."""
    files = lab.open(place)
    libc, parent, folder = ctypes.CDLL(None), os.getpid(), os.getcwd()

    def go_inside() -> None:
        for file in files:
            enter(file)
        os.chdir(folder)  # entering a view of the file system ends in its root
        libc.prctl(SIGNAL_AT_DEATH_OF_PARENT, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **variables},
            process_group=0,
            preexec_fn=go_inside,
        )
    except subprocess.SubprocessError:
        raise InputError(f"{lab.layout.hosts[place].name}: cannot enter the host; the lab may have ended") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{command[0]}: {getattr(error, 'strerror', None) or error}") from None
    finally:
        for file in files:
            os.close(file)
    return HostProcess(name, process)
