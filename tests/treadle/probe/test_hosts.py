"""Measuring across hosts: bad environments are one line; in the lab every rate of a profile is found again."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from treadle.cli.main import run
from treadle.lab import lifecycle
from treadle.lab.layout import layout
from treadle.lab.run import HostFailed
from treadle.lab.run import run as run_on_hosts
from treadle.planner.documents import store
from treadle.planner.documents.cost_matrix import CostMatrix
from treadle.planner.documents.hardware import Hardware
from treadle.planner.errors import MissingBackendError
from treadle.probe.pairs_summary import summarised
from treadle.probe.resolve import load_hardware

GOOD = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "GLOO_SOCKET_IFNAME": "lo"}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"RANK": "two"}, "RANK: found 'two', expected a whole number"),
        ({"RANK": "2"}, "RANK: found 2, expected a number below 2, which is WORLD_SIZE"),
        ({"MASTER_PORT": "-1"}, "MASTER_PORT: found '-1', expected a whole number"),
        ({"GLOO_SOCKET_IFNAME": "eth9"}, "GLOO_SOCKET_IFNAME: found no interface 'eth9' with an IPv4 address, have: "),
        ({"GLOO_SOCKET_IFNAME": "", "MASTER_ADDR": "no such host"}, "MASTER_ADDR: no such host cannot be reached"),
        ({"TREADLE_LATENCY_US": "soon"}, "TREADLE_LATENCY_US: found 'soon', expected microseconds"),
    ],
)
def test_a_bad_environment_is_one_line(
    changes: dict[str, str], line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {**GOOD, **changes}.items():
        monkeypatch.setenv(name, value)
    assert run(["profile", "measure"]) == 2
    printed = capsys.readouterr()
    assert line in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_options_for_one_machine_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in GOOD.items():
        monkeypatch.setenv(name, value)
    assert run(["profile", "measure", "--world", "4"]) == 2
    assert "--world: found ranks of several hosts, expected neither this nor --sizes" in capsys.readouterr().err


def test_a_port_in_use_is_one_line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("", 0)) as taken:
        for name, value in {**GOOD, "MASTER_PORT": str(taken.getsockname()[1])}.items():
            monkeypatch.setenv(name, value)
        assert run(["profile", "measure"]) == 2
    last = capfd.readouterr().err.splitlines()[-1]
    assert last == f"error: MASTER_ADDR: 127.0.0.1 port {taken_port(last)} is in use or not on this host"


def taken_port(line: str) -> str:
    return line.split("port ")[1].split()[0]


def of_network(hardware: Hardware) -> dict[str, float]:
    """Rates of every NIC and uplink, and what two hosts have between them, bits per second."""
    made = layout(hardware)
    nics = {f"{host.name} nic": float(host.interfaces[0].bits_per_second) for host in made.hosts}
    slower = {f"{host.name} to {at}": rate for host in made.hosts for at, rate in host.interfaces[0].slower}
    uplinks = {
        f"uplink of {[host.name for host in made.hosts if host.bridge == each.bridge]}": float(each.bits_per_second)
        for each in made.uplinks
    }
    return nics | slower | uplinks


def small_racks() -> Hardware:
    """The racks of two hosts each instead of four: an uplink that is as fast as one NIC still holds both up."""
    whole = load_hardware("racks-2x4")
    assert whole.network is not None
    uplinks = [replace(each, nodes=nodes) for each, nodes in zip(whole.network.uplinks, ((0, 1), (2, 3)), strict=True)]
    return replace(whole, nodes=4, network=replace(whole.network, uplinks=tuple(uplinks)))


@pytest.mark.slow
@pytest.mark.flaky(reruns=2)  # other work of a machine slows streams
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["racks", "hosts-2x2", "slow-nic"])
def test_in_the_lab_every_rate_is_found_again(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    shipped = small_racks() if name == "racks" else load_hardware(name)
    expected = pytest.approx({what: rate / 100 for what, rate in of_network(shipped).items()}, rel=0.1)
    made = layout(shipped, 100)
    lines: list[bytes] = []
    try:
        with lifecycle.the_lab(made) as lab:
            out = tmp_path / "found.yaml"
            command = [sys.executable, "-m", "treadle", "profile", "measure", "-o", str(out)]
            run_on_hosts(lab, command, lambda _name, _is_error, line: lines.append(line))
            found = store.load(out, Hardware)
    except MissingBackendError as error:
        pytest.skip(str(error))
    except HostFailed as error:
        pytest.fail(f"{error}: {b''.join(lines).decode()}")
    assert of_network(found) == expected
    assert [node.devices_per_node for node in found.every_node] == [
        node.devices_per_node for node in shipped.every_node
    ]
    assert found.network is not None
    assert 3000 < found.network.alpha_us < 3600


@pytest.mark.slow
@pytest.mark.flaky(reruns=2)  # other work of a machine slows streams
@pytest.mark.timeout(600)
def test_in_the_lab_pairs_show_the_racks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    out = tmp_path / "costs.json"
    lines: list[bytes] = []
    try:
        with lifecycle.the_lab(layout(load_hardware("racks-2x4"), 200)) as lab:
            command = [
                sys.executable,
                "-m",
                "treadle",
                "profile",
                "measure",
                "--pairs",
                "--probes",
                "100",
                "-o",
                str(out),
            ]
            run_on_hosts(lab, command, lambda _name, _is_error, line: lines.append(line))
    except MissingBackendError as error:
        pytest.skip(str(error))
    except HostFailed as error:
        pytest.fail(f"{error}: {b''.join(lines).decode()}")
    costs = store.load(out, CostMatrix)
    assert [host.name for host in costs.hosts] == [f"node{place}" for place in range(8)]
    assert summarised(costs).groups == ((0, 1, 2, 3), (4, 5, 6, 7))
    for rate in costs.rates:
        inside = rate.src // 4 == rate.dst // 4
        assert rate.bytes_per_second == pytest.approx(6.25e6 if inside else 6.25e6 / 4, rel=0.25)
