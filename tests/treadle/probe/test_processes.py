"""Processes that report: what they say arrives, and whatever goes wrong none is left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from treadle.planner.errors import CheckFailed, LimitError
from treadle.probe import processes
from treadle.probe.processes import messages


def behave(rank: int, settings: dict, queue) -> None:
    queue.put(("pid", rank, os.getpid()))
    if rank == settings.get("rank", -1):
        if settings["how"] == "killed":
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        if settings["how"] == "exit":
            sys.exit(7)
        if settings["how"] == "error":
            queue.put(("error", rank, "ValueError: no"))
    if "how" in settings:
        time.sleep(600)


def assert_gone(pids: list[int]) -> None:
    assert pids
    left = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(left, timeout=5)
    assert alive == []
    assert multiprocessing.active_children() == []


def test_everything_said_arrives():
    heard = list(messages(3, behave, {}))
    assert sorted(rank for _, rank, _ in heard) == [0, 1, 2]
    assert_gone([pid for *_, pid in heard])


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("killed", r"process 1 was killed by signal 9 \(SIGKILL, out of memory\?\); the others were ended too"),
        ("exit", "process 1 ended with exit code 7"),
        ("error", "process 1 failed: ValueError: no"),
    ],
)
def test_a_failing_process_ends_the_others(how, message):
    pids = []
    with pytest.raises(CheckFailed, match=message):
        pids.extend(pid for *_, pid in messages(2, behave, {"rank": 1, "how": how}))
    assert_gone(pids)


def test_silence_is_a_limit(monkeypatch):
    monkeypatch.setattr(processes, "STALL_SECONDS", 0.5)
    with pytest.raises(LimitError, match="no process made progress"):
        list(messages(2, behave, {"how": "hang"}))
    assert multiprocessing.active_children() == []


def test_a_listener_that_stops_early_leaves_nothing():
    stream = messages(2, behave, {"how": "hang"})
    pid = next(stream)[2]
    stream.close()
    assert_gone([pid])


def test_workers_end_when_the_measuring_command_is_killed():
    pytest.importorskip("torch")
    script = (
        "from treadle.cli.main import main; import sys; sys.argv = ['treadle', 'profile', 'measure', '--world', '2']"
    )
    command = [sys.executable, "-c", f"{script}\nif __name__ == '__main__':\n    main()"]
    parent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    workers: list[psutil.Process] = []
    deadline = time.monotonic() + 60
    while len(workers) < 2 and time.monotonic() < deadline and parent.poll() is None:
        time.sleep(0.1)
        workers = [
            child for child in psutil.Process(parent.pid).children() if "spawn_main" in " ".join(child.cmdline())
        ]
    assert len(workers) == 2
    time.sleep(3)  # past their imports
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs(workers, timeout=20)
    for worker in alive:
        worker.kill()
    assert alive == []
