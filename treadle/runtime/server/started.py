"""Servers of a plan as processes of this machine, for as long as a context."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from treadle.planner.errors import CheckFailed
from treadle.runtime.server.access import read

START_TURNS, TURN_SECONDS, END_SECONDS = 3000, 0.02, 10.0


@contextmanager
def started_servers(plan: Path, servers: int, folder: Path) -> Iterator[tuple[Path, list[int]]]:
    """The access file of `servers` servers of the plan in a file, and the numbers of their processes. What they write
    goes into `folder`. Raises CheckFailed with the words of one that ends before it serves."""
    access = folder / "access.json"
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for server in range(servers):
            command = [sys.executable, "-m", "treadle", "serve", str(plan), "--access", str(access)]
            command += ["--server", str(server)] if servers > 1 else []
            with _log(folder, server).open("wb") as log:
                processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        _await(access, processes, folder)
        yield access, [process.pid for process in processes]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _log(folder: Path, server: int) -> Path:
    return folder / f"server-{server}.log"


def _await(access: Path, processes: list[subprocess.Popen[bytes]], folder: Path) -> None:
    """Until all servers have entered the access file, in a minute without the time in which this process and theirs
    do not run."""
    turns = 0
    while not _complete(access):
        turns += 1
        for server, process in enumerate(processes):
            if process.poll() is not None or turns > START_TURNS:
                said = " ".join(_log(folder, server).read_text(errors="replace").split())[-500:]
                raise CheckFailed(f"server {server} did not start: {said or 'it said nothing'}")
        time.sleep(TURN_SECONDS)


def _complete(access: Path) -> bool:
    return access.exists() and None not in read(access).servers
