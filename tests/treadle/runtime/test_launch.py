"""Processes started together end together, and the one that failed first is named."""

from __future__ import annotations

import ipaddress
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from treadle.host.loopback import VARIABLES
from treadle.planner.errors import CheckFailed, InputError, LimitError
from treadle.runtime.launch import launch, send

ROOT = Path(__file__).parents[3]


def _wait_for_the_other(rank: int, world: int) -> None:
    import torch
    from torch import distributed

    distributed.recv(torch.empty(1), src=(rank + 1) % world)


def report_pid(folder: str, rank: int) -> None:
    Path(folder, f"{rank}.pid").write_text(str(os.getpid()))


def die(rank: int, world: int, folder: str) -> None:
    report_pid(folder, rank)
    if rank == 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    _wait_for_the_other(rank, world)


def fail(rank: int, world: int, kind: str, _: bytes = b"") -> None:
    if rank == world - 1:
        raise InputError("found nothing", where="x.yaml") if kind == "input" else ValueError("seven\nlines")
    time.sleep(60)


def hang(rank: int, world: int, folder: str) -> None:
    report_pid(folder, rank)
    if rank == 1:
        time.sleep(60)


def sum_of_ranks(rank: int, world: int, start: int) -> tuple[float, bool]:
    """The sum, and whether Ctrl-C is left to the parent."""
    import torch
    from torch import distributed

    value = torch.tensor([float(rank + start)])
    distributed.all_reduce(value)
    return float(value), signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def listening(rank: int, world: int) -> list[str]:
    """Addresses on which this process accepts connections, and its parent, once two groups have met."""
    import torch
    from torch import distributed

    group = distributed.new_group(list(range(world)), backend="gloo")
    distributed.all_reduce(torch.ones(1))
    distributed.all_reduce(torch.ones(1), group=group)
    distributed.barrier()
    processes = (psutil.Process(), psutil.Process(os.getppid()))
    sockets = [each for process in processes for each in process.net_connections("inet")]
    return [each.laddr.ip for each in sockets if each.status == psutil.CONN_LISTEN]


def talk(rank: int, world: int, seconds: float) -> None:
    for number in range(3):
        send((rank, number))
        time.sleep(seconds)


def gone(folder: Path) -> bool:
    pids = [int(path.read_text()) for path in folder.glob("*.pid")]
    return bool(pids) and not any(psutil.pid_exists(pid) for pid in pids)


def eventually(condition, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())


def test_results_come_by_rank() -> None:
    assert launch(2, sum_of_ranks, (10,)) == [(21.0, True), (21.0, True)]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.parametrize("named", [None, ""])
def test_nothing_listens_beyond_this_machine(named: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
        if named is not None:
            monkeypatch.setenv(variable, named)
    addresses = [address for each in launch(2, listening) for address in each]
    assert len(addresses) >= 2
    assert all(ipaddress.ip_address(address).is_loopback for address in addresses)


def test_an_interface_that_is_not_there_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    with pytest.raises(InputError, match="GLOO_SOCKET_IFNAME: found no interface 'nosuch0'"):
        launch(2, sum_of_ranks, (10,))


def test_a_killed_rank_is_named_and_the_others_end(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match=r"rank 1 was killed by signal 9 \(SIGKILL.*; the other ranks were stopped"):
        launch(2, die, (str(tmp_path),))
    assert len(list(tmp_path.glob("*.pid"))) == 2
    assert gone(tmp_path)


def test_errors_of_a_rank_pass_through() -> None:
    with pytest.raises(InputError, match=r"x\.yaml: found nothing"):
        launch(1, fail, ("input",), joined=False)


def test_other_errors_name_the_rank_in_one_line() -> None:
    with pytest.raises(CheckFailed, match=r"^rank 1 failed: ValueError: seven lines$"):
        launch(2, fail, ("other",), joined=False)


def test_time_runs_out(tmp_path: Path) -> None:
    with pytest.raises(LimitError, match="did not finish within 3 s; all ranks were stopped"):
        launch(2, hang, (str(tmp_path),), timeout=3, joined=False)
    assert gone(tmp_path) or not list(tmp_path.glob("*.pid"))


def test_messages_arrive_in_the_order_of_each_rank_and_silence_is_a_limit() -> None:
    messages: list[tuple[int, int]] = []
    launch(2, talk, (0.0,), joined=False, on_message=messages.append)
    assert sorted(messages) == [(rank, number) for rank in range(2) for number in range(3)]
    assert [number for rank, number in messages if rank == 1] == [0, 1, 2]
    with pytest.raises(LimitError, match="rank 0 did not finish"):
        launch(1, talk, (600.0,), timeout=1, joined=False, on_message=messages.append)


SCRIPT = """
import sys
from tests.treadle.runtime.test_launch import hang
from treadle.host.loopback import VARIABLES
from treadle.runtime.launch import launch

if __name__ == "__main__":
    launch(2, hang, (sys.argv[1],), joined=False)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_children_end_with_their_parent(tmp_path: Path, number: int) -> None:
    """Ctrl-C in the parent, and a parent that is killed without a chance to clean up."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)], env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True
    ) as parent:
        assert eventually(lambda: len(list(tmp_path.glob("*.pid"))) == 2, 60)
        parent.send_signal(number)
        _, errors = parent.communicate(timeout=10)
    assert eventually(lambda: gone(tmp_path), 5)
    assert parent.returncode == -number
    assert errors.count("Traceback") == (1 if number == signal.SIGINT else 0), errors


def test_a_rank_killed_while_it_starts_is_named_however_large_the_arguments() -> None:
    def kill_the_first() -> None:
        def starting() -> list[psutil.Process]:
            return [child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())]

        assert eventually(starting, 20)
        starting()[0].kill()

    killer = threading.Thread(target=kill_the_first)
    killer.start()
    with pytest.raises(CheckFailed, match=r"rank \d was killed by signal 9 \(SIGKILL"):
        launch(2, fail, ("other", bytes(2**21)), timeout=60, joined=False)
    killer.join()
