"""Launchers as they are, on hosts of a lab: every rank starts on the host that the plan says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.codegen.ranks.test_launchers import ranks_decisions
from tests.treadle.lab.test_layout import cluster
from tests.treadle.passes.ranks import lab_shell
from treadle.codegen.ranks.launchers import files_of
from treadle.lab import lifecycle
from treadle.lab.layout import layout
from treadle.lab.run import run
from treadle.planner.errors import MissingBackendError

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="needs network namespaces")]

HOSTS = ("node0", "node1", "node2", "node3")
ORDERS = {"": (2, 0, 3, 1), "original/": (0, 1, 2, 3), "worst/": (1, 2, 3, 0)}
RANKS = {folder: [(rank, f"node{host}") for rank, host in enumerate(order)] for folder, order in ORDERS.items()}
MPI = ("mpirun", "-np", "4", "--allow-run-as-root", "--mca", "oob_tcp_if_include", "eth0", "--mca", "plm_rsh_agent")
SLURM = """\
ClusterName=lab
SlurmctldHost=node0
SlurmUser={user}
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmdPidFile={folder}/%n.pid
SlurmctldPidFile={folder}/slurmctld.pid
NodeName=node[0-3] CPUs=1
PartitionName=all Nodes=ALL Default=YES
"""
DAEMONS = """\
cd {folder}
export SLURM_CONF={folder}/slurm.conf
slurmd -D >"$(uname -n).out" 2>&1 &
daemons=$!
if [ "$GROUP_RANK" = 0 ]; then
    slurmctld -D >slurmctld.out 2>&1 &
    daemons="$daemons $!"
    until [ "$(sinfo --noheader --Node --states=idle 2>/dev/null | wc -l)" = 4 ]; do sleep 0.1; done
    for order in . original worst; do
        echo "order $order"
        salloc --quiet --nodes=4 --ntasks=4 --nodelist=./hosts.txt sh $order/srun.sh sh -c 'echo "$RANK $(uname -n)"'
    done
    touch done
fi
until [ -e done ]; do sleep 0.1; done
kill $daemons
wait
"""


@pytest.fixture(autouse=True)
def four_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A lab that is up, and every file of every launcher in a folder of its own."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    for target in ("hostfile", "openmpi-rankfile", "torchrun", "slurm"):
        for name, text in files_of(ranks_decisions(HOSTS, slots=1), target, "plan.json").items():
            file = tmp_path / target / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    try:
        with lifecycle.up(layout(cluster(4))):
            pass
    except MissingBackendError as error:
        pytest.skip(str(error))
    yield
    lifecycle.down()


def on_hosts(*command: str) -> list[str]:
    """What a command prints that starts once on every host."""
    lines: list[str] = []
    with lifecycle.the_lab(layout(cluster(4))) as lab:
        run(lab, command, lambda _name, _is_error, line: lines.append(line.decode()), once=True)
    return lines


def ranks_in(lines: list[str]) -> list[tuple[int, str]]:
    return sorted((int(rank), host) for line in lines for rank, host in re.findall(r"^(\d) (node\d)$", line))


def test_torchrun_numbers_the_ranks_by_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}")
    script = tmp_path / "who.py"
    script.write_text("import os\nprint(os.environ['RANK'], os.uname().nodename)\n")
    assert ranks_in(on_hosts("sh", str(tmp_path / "torchrun" / "launch.sh"), str(script))) == RANKS[""]


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no Open MPI")
@pytest.mark.parametrize("folder", ORDERS, ids=["planned", "original", "worst"])
def test_open_mpi_numbers_the_ranks_by_the_plan(folder: str, tmp_path: Path) -> None:
    """By the file with a line for each rank from any host, by the rankfile from any host, by the file with slots from
    the first host of the order."""
    agent = f"{sys.executable} {lab_shell.__file__}"
    lists, rankfile = tmp_path / "hostfile" / folder, tmp_path / "openmpi-rankfile" / folder / "rankfile"
    starts = {
        "node3": (
            ("--map-by", "seq", "--hostfile", str(lists / "machinefile")),
            ("--rankfile", str(rankfile)),
        ),
        RANKS[folder][0][1]: (("--hostfile", str(lists / "hostfile")),),
    }
    for host, options in starts.items():
        for each in options:
            words = [*MPI, f"'{agent}'", *each, "sh", "-c", r"""'echo "$OMPI_COMM_WORLD_RANK $(uname -n)"'"""]
            shell = [sys.executable, lab_shell.__file__, host, "OMPI_ALLOW_RUN_AS_ROOT=1", *words]
            done = subprocess.run(shell, capture_output=True, text=True, check=False)
            assert ranks_in(done.stdout.splitlines()) == RANKS[folder], (host, each, done.stderr)


@pytest.mark.skipif(None in map(shutil.which, ("slurmctld", "slurmd", "munged")), reason="no Slurm")
@pytest.mark.skipif(os.geteuid() != 0, reason="slurmd needs root")
def test_slurm_numbers_the_tasks_by_the_plan(tmp_path: Path) -> None:
    """A controller on the first host and a daemon on each, as in a real cluster."""
    folder = tmp_path / "slurm"
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text(SLURM.format(folder=folder, user="root"))
    (folder / "key").write_bytes(bytes(range(128)))
    (folder / "key").chmod(0o600)
    files = [f"--{name}-file={folder / name}" for name in ("key", "pid", "log", "seed")]
    munge = ["munged", "--force", "--foreground", f"--socket={folder / 'munge.socket'}", *files]
    with subprocess.Popen(munge, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as daemon:
        try:
            lines = on_hosts("sh", "-c", DAEMONS.format(folder=folder))
        finally:
            daemon.terminate()
    first, second = lines.index("order original"), lines.index("order worst")
    assert ranks_in(lines[:first]) == RANKS[""], lines
    assert ranks_in(lines[first:second]) == RANKS["original/"], lines
    assert ranks_in(lines[second:]) == RANKS["worst/"], lines
