"""Daemons of hosts, with a launcher that starts them on this machine, each at a loopback address of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.documents.cost_matrix import CostMatrix
from treadle.planner.errors import CheckFailed, InputError
from treadle.probe.crew import Conductor
from treadle.probe.hostfile import ListedHost
from treadle.probe.ssh_crew import ssh_crew

LAUNCH = """#!/bin/sh
unset GLOO_SOCKET_IFNAME
SSH_CONNECTION="127.0.0.1 1 $1 22"; export SSH_CONNECTION
echo "Last login: never"
[ "$1" = 127.0.0.66 ] && { echo "no route to host" >&2; exit 255; }
[ "$1" = 127.0.0.77 ] && { export SSH_CONNECTION=; }
[ "$1" = 127.0.0.88 ] && { SSH_CONNECTION="127.0.0.1 1 127.0.0.1 22"; }
exec sh -c "exec $2"
"""


@pytest.fixture
def launcher(tmp_path: Path) -> str:
    path = tmp_path / "launch it"
    path.write_text(LAUNCH)
    path.chmod(0o755)
    return f"'{path}'"


def listed(*last: int) -> list[ListedHost]:
    return [ListedHost(f"127.0.0.{each}", 1) for each in last]


def daemons() -> list[psutil.Process]:
    """Those that this process has started."""
    below = psutil.Process().children(recursive=True)
    return [each for each in below if "treadle.probe.daemon" in " ".join(each.cmdline())]


def test_hosts_probe_each_other_and_end_with_the_block(launcher: str) -> None:
    with ssh_crew(listed(1, 2, 3), launcher, None) as crew:
        assert [host.at[0] for host in crew.hosts] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
        started = daemons()
        assert len(started) == 3
        for each in started:
            bound = {found.laddr.ip for found in each.net_connections("inet")}
            assert bound <= {"127.0.0.1", "127.0.0.2", "127.0.0.3"}
            assert not any(word in " ".join(each.cmdline()) for word in ("nonce", "127.0.0"))
        with Conductor(crew) as conductor:
            there, back = conductor.conduct("echo", [(0, 2), (2, 0)], probes=20)
        assert len(there["times_us"]) + there["lost"] == len(back["times_us"]) + back["lost"] == 20
    assert not psutil.wait_procs(started, timeout=10)[1]


def test_a_killed_daemon_is_named(launcher: str) -> None:
    with ssh_crew(listed(1, 2), launcher, None) as crew:
        conductor = Conductor(crew)
        victim = next(each for each in daemons() if each.net_connections("inet")[0].laddr.ip == "127.0.0.2")
        victim.kill()
        with pytest.raises(CheckFailed) as error:
            conductor.conduct("echo", [(0, 1)], probes=5)
    assert str(error.value).startswith("127.0.0.2 does not answer: its launcher ended")
    assert not daemons()


def test_daemons_end_with_a_leader_that_is_killed(launcher: str, tmp_path: Path) -> None:
    script = tmp_path / "lead.py"
    script.write_text(
        "import sys, time\n"
        "from treadle.probe.hostfile import ListedHost\n"
        "from treadle.probe.ssh_crew import ssh_crew\n"
        "with ssh_crew([ListedHost('127.0.0.1', 1), ListedHost('127.0.0.2', 1)], sys.argv[1], None):\n"
        "    print('there', flush=True)\n"
        "    time.sleep(60)\n"
    )
    leader = subprocess.Popen([sys.executable, str(script), launcher], stdout=subprocess.PIPE, text=True)
    assert leader.stdout is not None
    assert leader.stdout.readline() == "there\n"
    started = daemons()
    assert len(started) == 2
    os.kill(leader.pid, signal.SIGKILL)
    leader.wait()
    leader.stdout.close()
    assert not psutil.wait_procs(started, timeout=10)[1]


def test_every_host_that_does_not_answer_has_a_line(launcher: str) -> None:
    with pytest.raises(CheckFailed) as error, ssh_crew(listed(1, 66, 77), launcher, None):
        pass
    assert str(error.value) == "2 hosts of 3 cannot be probed"
    assert error.value.findings == (
        "127.0.0.66 does not answer: its launcher ended with exit code 255: no route to host",
        "127.0.0.77: found no IPv4 address at which other hosts reach this one; name the interface with --interface",
    )
    assert not daemons()


def test_two_names_of_one_host_are_refused(launcher: str) -> None:
    with pytest.raises(InputError) as error, ssh_crew(listed(1, 88), launcher, None):
        pass
    assert "found 127.0.0.88 and 127.0.0.1 at the address 127.0.0.1, expected each host once" in str(error.value)


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("", "--ssh: found nothing"),
        ("/no/such/ssh -x", "--ssh: /no/such/ssh: No such file"),
        ("'", '--ssh: found "\'"'),
    ],
)
def test_a_launcher_that_cannot_start_is_one_line(command: str, line: str) -> None:
    with pytest.raises(InputError) as error, ssh_crew(listed(1, 2), command, None):
        pass
    assert str(error.value).startswith(line)


def test_an_interface_that_is_not_there_is_named(launcher: str) -> None:
    with pytest.raises(CheckFailed) as error, ssh_crew(listed(1, 2), launcher, "eth77"):
        pass
    assert error.value.findings[0].startswith("127.0.0.1: --interface: found no interface 'eth77' with an IPv4 address")


@pytest.mark.slow
def test_from_a_hostfile_to_a_matrix(launcher: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostfile, out = tmp_path / "hosts", tmp_path / "costs.json"
    hostfile.write_text("127.0.0.1 slots=8\n127.0.0.2:8\n127.0.0.3 slots=4\n")
    begin = time.time()
    arguments = ["profile", "measure", "--hosts", str(hostfile), "--ssh", launcher, "--probes", "50"]
    assert run([*arguments, "-o", str(out)]) == 0
    found = store.load(out, CostMatrix)
    assert [(host.name, host.slots) for host in found.hosts] == [("127.0.0.1", 8), ("127.0.0.2", 8), ("127.0.0.3", 4)]
    assert all(
        us is not None and (us > 0) == (i != j) for i, row in enumerate(found.latency_us) for j, us in enumerate(row)
    )
    assert len(found.rates) == 3
    assert found.measured_at is not None
    assert abs(time.mktime(time.strptime(found.measured_at, "%Y-%m-%dT%H:%M:%SZ")) - time.timezone - begin) < 600
    assert "slots of a host" in capsys.readouterr().out
    assert not daemons()
