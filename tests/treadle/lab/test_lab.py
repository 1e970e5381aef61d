"""Hosts of a profile on this machine: programs on them reach each other at the profile's rates, and nothing remains."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import treadle
from tests.treadle.cli.test_json_output import KEYS
from tests.treadle.lab.test_layout import GIGABIT_BETA, cluster
from treadle.cli.main import run as command
from treadle.lab import lifecycle, state
from treadle.lab.layout import LabLayout, layout
from treadle.lab.namespaces import processes_in
from treadle.lab.processes import start
from treadle.lab.run import HostFailed, run
from treadle.planner.documents import store
from treadle.planner.documents.hardware import NodeGroup, Uplink
from treadle.planner.errors import InputError, MissingBackendError
from treadle.probe.resolve import load_hardware

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="needs network namespaces")]

SEND = """
import os, socket, sys, time
rank, size = int(os.environ["RANK"]), 2 << 20
pairs = [tuple(map(int, pair.split("-"))) for pair in sys.argv[1].split(",")]
for source, target in pairs:
    if rank == target:
        server = socket.create_server(("", 4000 + source))
time.sleep(0.5)
for source, target in pairs:
    if rank == source:
        peer = socket.create_connection((f"10.64.0.{target + 1}", 4000 + source))
        peer.sendall(bytes(size))
        peer.close()
    elif rank == target:
        peer, _ = server.accept()
        peer.recv(1)
        begun, count = time.monotonic(), 1
        while part := peer.recv(1 << 16):
            count += len(part)
        print("sent", source, target, count, begun, time.monotonic())
"""

WHO_HAS = """
import os, socket, struct, sys
if os.environ["RANK"] == "2":
    asked = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806))
    asked.bind(("eth0", 0))
    asked.settimeout(0.3)
    here, own, to_all = socket.inet_aton("10.64.0.2"), asked.getsockname()[4], b"\\xff" * 6
    for address in map(socket.inet_aton, sys.argv[1:]):
        request = struct.pack("!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, 1, own, here, bytes(6), address)
        asked.send(to_all + own + b"\\x08\\x06" + request)
        try:
            while True:
                answer = asked.recv(100)
                if answer[20:22] == b"\\0\\2" and answer[28:32] == address:
                    print(socket.inet_ntoa(address), answer[22:28].hex())
        except TimeoutError:
            pass
"""


@pytest.fixture(autouse=True)
def own_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    try:
        with lifecycle.the_lab(layout(cluster(2))):
            pass
    except MissingBackendError as error:
        pytest.skip(str(error))
    yield
    lifecycle.down()


def sent(made: LabLayout, pairs: str) -> dict[tuple[int, int], tuple[int, float, float]]:
    """Bytes, begin and end in seconds of messages that are sent together."""
    found = {}

    def keep(_name: str, is_error: bool, line: bytes) -> None:
        assert not is_error, line
        _, source, target, *numbers = line.decode().split()
        found[int(source), int(target)] = (int(numbers[0]), float(numbers[1]), float(numbers[2]))

    with lifecycle.the_lab(made) as lab:
        run(lab, [sys.executable, "-c", SEND, pairs], keep)
    return found


def rates(made: LabLayout, pairs: str) -> dict[tuple[int, int], float]:
    return {pair: 8 * count / (end - begun) for pair, (count, begun, end) in sent(made, pairs).items()}


def stay(made: LabLayout) -> None:
    with lifecycle.up(made):
        pass


def carries(measured: float, rate: float) -> bool:
    """Never more than the rate; less only by what other work on this machine takes."""
    return 0.6 * rate < measured < 1.1 * rate


def test_links_carry_the_rates_of_the_profile() -> None:
    slow = (NodeGroup(name="pair", nodes=(1, 2), beta_us_per_MB=4 * GIGABIT_BETA),)
    found = rates(layout(cluster(4, groups=slow), 20), "0-1,2-3")
    assert all(carries(rate, 50e6) for rate in found.values()), found
    found = rates(layout(cluster(4, groups=slow), 20), "1-2")
    assert carries(found[1, 2], 12.5e6), found


def test_an_uplink_is_shared_by_its_rack() -> None:
    racks = tuple(
        Uplink(name=f"rack{number}", nodes=nodes, beta_us_per_MB=GIGABIT_BETA)
        for number, nodes in enumerate([(0, 1), (2, 3)])
    )
    made = layout(cluster(4, uplinks=racks), 20)
    counts, begins, ends = zip(*sent(made, "0-2,1-3").values(), strict=True)
    together = 8 * sum(counts) / (max(ends) - min(begins))
    assert carries(together, 50e6), together
    inside = rates(made, "0-1,2-3")
    assert all(carries(rate, 50e6) for rate in inside.values()), inside


def test_of_interfaces_of_a_host_only_the_addressed_one_answers() -> None:
    """Otherwise what is sent to one arrives at another, whose link carries both."""
    made, lines = layout(cluster(2, 2)), list[str]()
    addresses = [interface.address for interface in made.hosts[0].interfaces]
    with lifecycle.the_lab(made) as lab:
        run(lab, [sys.executable, "-c", WHO_HAS, *addresses], lambda _name, _error, line: lines.append(line.decode()))
    asked, cards = zip(*(line.split() for line in lines), strict=True)
    assert list(asked) == addresses
    assert len(set(cards)) == 2


def test_a_failing_host_ends_the_others_and_is_named() -> None:
    with lifecycle.the_lab(layout(cluster(3))) as lab:
        with pytest.raises(HostFailed, match="node2 ended with exit code 7; the others were ended") as failed:
            run(lab, ["sh", "-c", "[ $RANK = 2 ] && exit 7; sleep 1000"], lambda *_: None)
        assert failed.value.exit_code == 7
        assert list(processes_in(frozenset(lab.inodes), lab.mark)) == [lab.keeper]


def test_a_command_that_is_not_there_starts_nothing() -> None:
    with lifecycle.the_lab(layout(cluster(2))) as lab, pytest.raises(InputError, match="found no command 'absent'"):
        run(lab, ["absent"], lambda *_: None)


def test_whole_lines_and_very_long_ones_are_printed() -> None:
    printed = []
    text = "import sys; print('a'); sys.stdout.write('x' * 200_000 + 'end')"
    with lifecycle.the_lab(layout(cluster(2))) as lab:
        run(lab, [sys.executable, "-c", text], lambda name, _, line: printed.append((name, line)))
    mine = [line for name, line in printed if name == "node1"]
    assert mine[0] == b"a"
    assert b"".join(mine[1:]) == b"x" * 200_000 + b"end"


def test_two_labs_at_once_are_refused_and_another_profile_too() -> None:
    stay(layout(cluster(2)))
    with pytest.raises(InputError, match="a lab of cluster is up already"):
        stay(layout(cluster(2)))
    with pytest.raises(InputError, match=r"cluster: a lab of 2 hosts of cluster at --scale 1 is up; end it"):
        lifecycle.the_lab(layout(cluster(3))).__enter__()
    with lifecycle.the_lab(layout(cluster(2))) as lab:
        assert lab == state.read()
    assert state.is_up()


def test_a_killed_process_is_named_and_the_rest_is_ended() -> None:
    with lifecycle.the_lab(layout(cluster(2, 2))) as lab:
        with pytest.raises(HostFailed, match=r"node1:1 was killed by signal 9 \(SIGKILL, out of memory\?\)") as failed:
            run(lab, ["sh", "-c", "[ $RANK = 3 ] && kill -9 $$; trap '' TERM; sleep 1000 & wait"], lambda *_: None)
        assert failed.value.exit_code == 137
        assert list(processes_in(frozenset(lab.inodes), lab.mark)) == [lab.keeper]


def test_hosts_have_names_and_only_their_own_interfaces() -> None:
    text = """import os, socket as s
print(s.gethostname(), s.gethostbyname("node1"), s.getnameinfo(("::ffff:10.64.0.1", 1), 0)[0], os.getcwd())
print(sorted(name for _, name in s.if_nameindex()))"""
    found = []
    with lifecycle.the_lab(layout(cluster(2))) as lab:
        run(lab, [sys.executable, "-c", text], lambda name, _, line: found.append((name, line.decode())))
    names = [(f"node{n}", f"node{n} 10.64.0.2 node0 {Path.cwd()}") for n in range(2)]
    assert sorted(found) == sorted([*names, *((f"node{n}", f"['eth0', '{lab.mark}', 'lo']") for n in range(2))])
    assert socket.gethostname() != "node0"


def test_torchrun_runs_once_per_host() -> None:
    made = layout(cluster(2, 2))
    with lifecycle.the_lab(made) as lab:
        with pytest.raises(InputError, match="cluster: torchrun starts the processes of a host itself; add --once"):
            run(lab, [str(Path(sys.executable).parent / "torchrun"), "x.py"], lambda *_: None)
        found = []
        run(lab, ["sh", "-c", "echo $PET_NODE_RANK"], lambda name, _, line: found.append((name, line)), once=True)
    assert sorted(found) == [("node0", b"0"), ("node1", b"1")]


LISTEN = """import socket, sys, time
held = [socket.create_server(("", port)) for port in range(29500, int(sys.argv[1]))]
print(1, flush=True)
time.sleep(99)"""


@pytest.mark.parametrize("end", [29502, 29600])
def test_a_port_in_use_is_passed_over_and_none_left_is_one_line(end: int) -> None:
    found: list[bytes] = []
    with lifecycle.the_lab(layout(cluster(2))) as lab:
        server = start(lab, 0, "", [sys.executable, "-c", LISTEN, str(end)], {})
        assert server.stdout.readline() == b"1\n"
        none = pytest.raises(InputError, match="found no free port from 29500 to 29599 on node0")
        with contextlib.nullcontext() if end < 29600 else none:
            run(lab, ["sh", "-c", "echo $MASTER_PORT"], lambda *printed: found.append(printed[2]))
        server.end()
    assert found == ([b"29502"] * 2 if end < 29600 else [])


def test_two_runs_at_once_have_ports_of_their_own() -> None:
    found: list[bytes] = []

    def second(_name: str, _is_error: bool, line: bytes) -> None:
        found.append(line)
        if len(found) == 1:
            with lifecycle.the_lab(layout(cluster(2))) as lab:
                run(lab, ["sh", "-c", "echo $MASTER_PORT"], lambda *printed: found.append(printed[2]))

    stay(layout(cluster(2)))
    with lifecycle.the_lab(layout(cluster(2))) as lab:
        run(lab, ["sh", "-c", "echo $MASTER_PORT; sleep 1"], second)
    assert sorted(found) == [b"29500", b"29500", b"29501", b"29501"]


def test_without_root_and_user_namespaces_it_is_one_line_and_code_5(tmp_path: Path) -> None:
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("drops the capabilities of root")
    profile = tmp_path / "cluster.json"
    store.save(cluster(2), profile)
    line = ["setpriv", "--bounding-set=-all", sys.executable, "-m", "treadle", "lab", "up", str(profile)]
    done = subprocess.run(
        line, capture_output=True, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}, check=False
    )
    assert done.returncode == 5
    assert done.stderr.count("\n") == 1
    assert "it needs root or user namespaces" in done.stderr


def test_the_commands_print_the_keys_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line, name in (
        ("lab up racks-2x4 --scale 100 --json", "lab"),
        ("lab run racks-2x4 --json -- echo 1", "lab-run"),
        ("lab down --json", "lab-down"),
        ("lab down --json", "lab-down"),
    ):
        assert command(line.split()) == 0
        document = json.loads(capsys.readouterr().out)
        assert document.pop("schema") == f"treadle.{name}/1"
        assert document.keys() == KEYS[name][0]
        assert document["profile"] in ("racks-2x4", None)


def test_the_exit_code_of_treadle_is_that_of_the_first_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["lab", "run", "slow-nic", "--", "sh", "-c", "echo \x1b[2J; exit 3"]) == 3
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out
    assert re.search(r"^error: node\d ended with exit code 3; the others were ended$", printed.err, re.MULTILINE)


def test_a_state_file_of_something_else_is_no_lab_and_keeps_none_up() -> None:
    (state.folder() / state.STATE).write_text('{"keeper": 1}')
    stay(layout(cluster(2)))
    (state.folder() / state.STATE).write_text('{"keeper": 1}')
    assert lifecycle.down() is None
    assert not state.is_up()


ALLREDUCE = """import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([1 << dist.get_rank()])
dist.all_reduce(total)
sys.stdout.write(f"total {total.item()}\\n")  # at once: torchrun runs Python without a buffer
dist.destroy_process_group()"""


@pytest.mark.parametrize("once", [True, False])
def test_torchrun_and_gloo_run_unmodified(once: bool, tmp_path: Path) -> None:
    script = tmp_path / "allreduce.py"
    script.write_text(ALLREDUCE)
    starter = [sys.executable, *(["-m", "torch.distributed.run"] if once else []), str(script)]
    found: list[tuple[str, bytes]] = []
    with lifecycle.the_lab(layout(cluster(2, 2 if once else 1), 10)) as lab:
        run(lab, starter, lambda name, _, line: found.append((name, line)), once=once)
    totals = [name for name, line in found if line == (b"total 15" if once else b"total 3")]
    assert sorted(totals) == (["node0"] * 2 + ["node1"] * 2 if once else ["node0", "node1"])
    assert not [line for _, line in found if b"hostname" in line]


def test_a_user_without_rights_has_a_lab_in_a_user_namespace(tmp_path: Path) -> None:
    """The interpreter of another user, where that one may read it."""
    as_nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    python = shutil.which(f"python{sys.version_info[0]}.{sys.version_info[1]}", path="/usr/bin:/usr/local/bin")
    if os.geteuid() != 0 or not shutil.which("setpriv") or python is None:
        pytest.skip("needs root, setpriv and an interpreter that every user may run")
    packages = sysconfig.get_path("purelib")
    environment = {**os.environ, "PYTHONPATH": f"{Path(treadle.__file__).parents[1]}:{packages}", "TMPDIR": "/dev/shm"}
    profile = Path(tempfile.mkdtemp(dir="/dev/shm"), "cluster.json")
    store.save(cluster(2), profile)
    profile.chmod(0o644)
    profile.parent.chmod(0o755)
    try:
        line = [*as_nobody, python, "-m", "treadle", "lab", "run", str(profile), "--", "id", "-u"]
        done = subprocess.run(line, capture_output=True, text=True, env=environment, check=False, cwd="/")
    finally:
        shutil.rmtree(profile.parent)
        shutil.rmtree("/dev/shm/treadle-lab-65534", ignore_errors=True)
    if done.returncode == 5 or "No module" in done.stderr:
        assert done.stderr.count("\n") == 1
        pytest.skip(done.stderr)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["[node0] 65534", "[node1] 65534"]), done.stderr


def test_a_folder_that_others_may_write_is_refused() -> None:
    state.folder().chmod(0o777)
    with pytest.raises(InputError, match="found a folder that others may change"):
        stay(layout(cluster(2)))
    Path(tempfile.gettempdir(), f"treadle-lab-{os.geteuid()}").chmod(0o700)


@pytest.mark.parametrize("victim", ["keeper", "run"])
def test_nothing_is_left_of_a_killed_lab(victim: str, tmp_path: Path) -> None:
    """Also of processes that left their group, session and parent."""
    profile = tmp_path / "cluster.json"
    store.save(cluster(2), profile)
    if victim == "keeper":
        stay(layout(cluster(2)))
    line = ["lab", "run", str(profile), "--", "sh", "-c", "setsid sleep 1000 & sleep 1000"]
    process = subprocess.Popen([sys.executable, "-m", "treadle", *line], env={**os.environ, "TMPDIR": str(tmp_path)})
    lab = until(state.read)
    networks = frozenset(lab.inodes)
    inside = until(lambda: [pid for pid in processes_in(networks, lab.mark) if pid != lab.keeper][3:])
    os.kill(lab.keeper if victim == "keeper" else process.pid, signal.SIGKILL)
    if victim == "keeper":
        assert inside
        lifecycle.down()
    until(lambda: not list(processes_in(networks, lab.mark)))
    until(lambda: state.read() is None)
    assert process.wait(10) != 0
    names = {name for _, name in socket.if_nameindex()}
    assert not {name for name in names if name.startswith(("lab-", "bridge", "n0p"))}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_every_host(number: signal.Signals, tmp_path: Path) -> None:
    profile = tmp_path / "cluster.json"
    store.save(cluster(2), profile)
    text = f"trap 'touch {tmp_path}/seen$RANK; exit 0' {number.name.removeprefix('SIG')}; sleep 1000 & wait"
    process = subprocess.Popen(
        [sys.executable, "-m", "treadle", "lab", "run", str(profile), "--", "bash", "-c", text],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    lab = until(state.read)
    until(lambda: [pid for pid in processes_in(frozenset(lab.inodes), lab.mark) if pid != lab.keeper][3:])
    time.sleep(0.3)
    process.send_signal(number)
    assert process.wait(10) == 128 + number
    assert {path.name for path in tmp_path.glob("seen*")} == {"seen0", "seen1"}
    said = "interrupted" if number == signal.SIGINT else "ended by SIGTERM, and with it the command on every host"
    assert process.stderr is not None
    assert process.stderr.read() == f"error: {said}\n"


def test_a_signal_to_a_process_that_ignores_it_reaches_no_host() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    found = []
    try:
        with lifecycle.the_lab(layout(cluster(2))) as lab:
            run(lab, ["sh", "-c", f"kill -HUP {os.getpid()}; echo on"], lambda *it: found.append(it[2]))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert found == [b"on", b"on"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_lab_is_up_only_after_the_end_of_its_command(number: signal.Signals, tmp_path: Path) -> None:
    """A signal at any moment either comes too late or leaves nothing."""
    profile = tmp_path / "cluster.json"
    store.save(cluster(2), profile)
    begun = time.monotonic()
    line = [sys.executable, "-m", "treadle", "lab", "up", str(profile)]
    assert subprocess.run(line, capture_output=True, check=False).returncode == 0
    whole = time.monotonic() - begun
    lifecycle.down()
    for part in (0.5, 0.6, 0.7, 0.8, 0.9):
        process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(part * whole)
        process.send_signal(number)
        if process.wait(10) == 0:
            assert lifecycle.down() is not None
        elif number != signal.SIGKILL:
            until(lambda: not state.is_up() and state.read() is None)
        else:  # at once, or all was done when it was killed
            until(lambda: not state.is_up() or ((lab := state.read()) is not None and lab.stays))
            lifecycle.down()


def test_an_exception_before_the_lab_stays_ends_it() -> None:
    with pytest.raises(KeyboardInterrupt), lifecycle.up(layout(cluster(2))):
        raise KeyboardInterrupt
    assert state.read() is None
    assert not state.is_up()


def test_a_lab_that_was_killed_is_not_replaced_by_another_scale(capsys: pytest.CaptureFixture[str]) -> None:
    stay(layout(load_hardware("slow-nic"), 10))
    lab = state.read()
    assert lab is not None
    os.kill(lab.keeper, signal.SIGKILL)
    until(lambda: not state.is_up())
    assert command(["lab", "run", "slow-nic", "--", "true"]) == 2
    said = (
        "error: slow-nic: the lab of 4 hosts of slow-nic at --scale 10 was killed; start it again with `treadle lab up`"
    )
    assert said in capsys.readouterr().err
    assert command(["lab", "down"]) == 0
    assert command(["lab", "run", "slow-nic", "--", "true"]) == 0


@pytest.mark.parametrize("stays", [True, False])
def test_all_ends_when_nothing_reads_stdout(stays: bool, tmp_path: Path) -> None:
    profile = tmp_path / "cluster.json"
    store.save(cluster(2), profile)
    if stays:
        stay(layout(cluster(2)))
    line = [
        sys.executable,
        "-m",
        "treadle",
        "lab",
        "run",
        str(profile),
        "--",
        "sh",
        "-c",
        "echo 1; setsid sleep 1000 & sleep 1000",
    ]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        lab = until(state.read)
        assert process.stdout is not None
        assert process.stdout.readline().endswith(b" 1\n")
        process.stdout.close()
        assert process.wait(10) == 128 + signal.SIGPIPE
        assert process.stderr is not None
        assert process.stderr.read() == b""
    left = list(processes_in(frozenset(lab.inodes), lab.mark))
    assert left == ([lab.keeper] if stays else [])


def test_children_of_a_killed_run_end_in_a_lab_that_stays(tmp_path: Path) -> None:
    """And the processes of another run go on."""
    stay(layout(cluster(2)))
    lab = state.read()
    assert lab is not None
    profile = tmp_path / "cluster.json"
    store.save(cluster(2), profile)
    line = [sys.executable, "-m", "treadle", "lab", "run", str(profile), "--", "sh", "-c"]
    networks = frozenset(lab.inodes)
    lines = ("exec sleep 1000", "setsid sleep 1000 & exec sleep 1000")
    other, process = (subprocess.Popen([*line, text]) for text in lines)
    try:
        until(lambda: len(list(processes_in(networks, lab.mark))) == 1 + 2 + 4)
        process.kill()
        until(lambda: len(list(processes_in(networks, lab.mark))) == 1 + 2)
        other.terminate()
        assert other.wait(10) == 143
    finally:
        for each in (other, process):
            each.kill()
            each.wait()


def test_a_stopped_process_is_named() -> None:
    found = []
    text = "[ $RANK = 0 ] || exit 0; (sleep 0.5; kill -CONT $$) & kill -STOP $$; wait"
    with lifecycle.the_lab(layout(cluster(2))) as lab:
        run(lab, ["sh", "-c", text], lambda *it: found.append(it))
    assert found == [("node0", True, b"treadle: stopped by SIGSTOP; the others wait for it until SIGCONT")]


def test_bytes_that_are_no_text_stay_in_their_line(capsys: pytest.CaptureFixture[str]) -> None:
    stay(layout(load_hardware("slow-nic"), 10))
    assert command(["lab", "run", "slow-nic", "--", "printf", r"a\0b\377\tc\r\n\n10%%\r20%%"]) == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("[node2]")]
    assert printed == [
        r"[node2] a\x00b\N{REPLACEMENT CHARACTER}    c".replace(r"\N{REPLACEMENT CHARACTER}", "\ufffd"),
        "[node2] ",
        r"[node2] 10%\r20%",
    ]


def test_without_pyroute2_the_extra_is_named(tmp_path: Path) -> None:
    hide = "import sys; sys.modules['pyroute2'] = None"
    (tmp_path / "sitecustomize.py").write_text(hide)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    line = [sys.executable, "-m", "treadle", "lab", "up", "slow-nic"]
    done = subprocess.run(line, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 5
    assert done.stderr == "error: a lab needs pyroute2; install it with: pip install 'treadle[lab]'\n"


def until(look, seconds: float = 10.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(FileNotFoundError):
            if found := look():
                return found
        time.sleep(0.05)
    raise AssertionError("it did not happen")
