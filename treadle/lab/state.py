"""The lab that is up: what its keeper wrote about it, and whether that keeper still lives."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from treadle.lab.layout import LabLayout
from treadle.lab.namespaces import processes_in
from treadle.planner.errors import CheckFailed, InputError

STATE, LOCK = "lab.json", "lock"
KEEPER = b"treadle.lab.keeper"
END_SECONDS, LOOK_SECONDS = 5.0, 0.02


@dataclass(frozen=True)
class HostFiles:
    """Open files of the keeper: the namespaces of one host. `user` is -1 where root made them."""

    user: int
    mounts: int
    name: int
    network: int


@dataclass(frozen=True)
class Lab:
    layout: LabLayout
    keeper: int
    mark: str
    hosts: tuple[HostFiles, ...]
    inodes: tuple[int, ...]
    """The network namespaces: of the bridges, and of each host."""
    stays: bool = False
    """Whether it outlives the command that started it, until `treadle lab down`."""

    def open(self, place: int) -> tuple[int, ...]:
        """Open files of the namespaces of a host, in the order to enter them. Raises InputError where they ended."""
        files = self.hosts[place]
        try:
            numbers = [number for number in (files.user, files.mounts, files.name, files.network) if number >= 0]
            return tuple(os.open(f"/proc/{self.keeper}/fd/{number}", os.O_RDONLY) for number in numbers)
        except OSError as error:
            raise InputError(f"the lab of {self.layout.profile} has ended ({error.strerror})") from None


def folder() -> Path:
    """This user's folder for the state of the lab. Raises InputError where another user made it."""
    path = Path(tempfile.gettempdir()) / f"treadle-lab-{os.geteuid()}"
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise InputError("found a folder that others may change, expected one of your own; remove it", where=str(path))
    return path


def read() -> Lab | None:
    """What is written about the lab, whether it is still there or not."""
    try:
        return msgspec.json.decode((folder() / STATE).read_bytes(), type=Lab)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError:
        (folder() / STATE).unlink(missing_ok=True)
        return None


def write(lab: Lab) -> None:
    path = folder() / STATE
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(lab))
    fresh.replace(path)


def forget() -> None:
    (folder() / STATE).unlink(missing_ok=True)


def end_left() -> None:
    """End what a keeper that was killed has left. For the holder of the lock."""
    if (lab := read()) is not None:
        end_processes(lab)
        forget()


def end_processes(lab: Lab, meant: Callable[[int], bool] = lambda _: True) -> None:
    """Kill the processes in the namespaces of the lab but its keeper, those that are `meant`, and wait until they are
    gone. Raises CheckFailed for one that does not end."""
    end = time.monotonic() + END_SECONDS
    while True:
        inside = (pid for pid in processes_in(frozenset(lab.inodes), lab.mark) if pid != lab.keeper)
        found = [pid for pid in inside if meant(pid)]
        if not found:
            return
        if time.monotonic() > end:
            raise CheckFailed(f"process {found[0]} in the lab of {lab.layout.profile} does not end")
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_SECONDS)


def has_variable(pid: int, variable: str) -> bool:
    """Whether a process was started with the environment variable `NAME=value`."""
    try:
        return variable.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it ended
        return False


def in_groups(pid: int, groups: frozenset[int]) -> bool:
    """Whether a process is in one of these process groups."""
    try:
        return os.getpgid(pid) in groups
    except ProcessLookupError:
        return False


def hold() -> int | None:
    """The lock that a keeper holds while it lives, with its process ID; None where another process has it."""
    lock = _locked(LOCK)
    if lock is not None:
        os.ftruncate(lock, 0)
        os.write(lock, str(os.getpid()).encode())
    return lock


def hold_port(port: int) -> int | None:
    """The lock that a run holds on its MASTER_PORT; None where another run has it."""
    return _locked(f"port-{port}")


def _locked(name: str) -> int | None:
    lock = os.open(folder() / name, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def end_keeper() -> None:
    """Kill the keeper, if there is one, also if what it wrote about its lab cannot be read."""
    end = time.monotonic() + END_SECONDS
    while is_up():
        if time.monotonic() > end:
            raise CheckFailed(f"{folder() / LOCK}: held by a process that does not end")
        with suppress(OSError, ValueError):
            keeper = int((folder() / LOCK).read_text())
            if KEEPER in Path(f"/proc/{keeper}/cmdline").read_bytes():
                os.kill(keeper, signal.SIGKILL)
        time.sleep(LOOK_SECONDS)


def is_up() -> bool:
    lock = os.open(folder() / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
