"""Parts of a parameter server: cards are read, rates are measured, and what ships gives the plans of its paper."""

from __future__ import annotations

import json
import socket
from types import SimpleNamespace

import pytest

from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.documents.server_parts import VERSION, ServerCosts, ServerDomain, ServerInterface, ServerParts
from treadle.planner.documents.sources import SHIPPED, load_named
from treadle.planner.passes.server.extract import ServerSetup, problem_of
from treadle.planner.passes.server.keys import ServerKey, ServerKeys
from treadle.planner.passes.server.network_costs import network_costs
from treadle.planner.passes.server.planning import plan_server
from treadle.planner.passes.server.price_list import ServerPrices
from treadle.planner.resources import names
from treadle.probe import measure_server as module
from treadle.probe import server_network
from treadle.probe.measure_server import MeasuredServer, RateCheck, measure_server
from treadle.probe.server_network import interfaces
from treadle.probe.server_rates import TallRate

PARTS = ServerParts(
    version=VERSION,
    name="a machine",
    domains=(ServerDomain(cores=2),),
    interfaces=(ServerInterface(name="eth0", link_gbps=25, slot_GBps=7.877, address="10.0.0.1"),),
    memory_GBps=60.0,
    costs={"tcp": ServerCosts(receive_us_per_MB=100, message_us=2)},
    optimize_us_per_MB={"sgd": 150},
    sources={"memory_GBps": "measured"},
)
MEASURED = MeasuredServer(
    PARTS,
    (RateCheck("a += b, a core", 12e9, 11e9), RateCheck("read and written, a core", 40e9)),
    (TallRate(32 << 10, 8, False, 9e9),),
    ("the bridge between cards and memory is not measured",),
)


@pytest.fixture
def cards(monkeypatch, tmp_path):
    """Four cards of an operating system: one on the second domain, one down, loopback, one without a speed."""
    device = tmp_path / "eth1" / "device"
    device.mkdir(parents=True)
    for name, text in (("numa_node", "1"), ("current_link_speed", "8.0 GT/s PCIe"), ("current_link_width", "8")):
        (device / name).write_text(f"{text}\n")
    found = {
        "lo": SimpleNamespace(isup=True, flags="up,loopback", speed=0, mtu=65536),
        "eth0": SimpleNamespace(isup=False, flags="", speed=10000, mtu=1500),
        "eth1": SimpleNamespace(isup=True, flags="up", speed=25000, mtu=9000),
        "eth2": SimpleNamespace(isup=True, flags="up", speed=0, mtu=1500),
    }
    address = SimpleNamespace(family=socket.AF_INET, address="10.0.0.2")
    monkeypatch.setattr(server_network.psutil, "net_if_stats", lambda: found)
    monkeypatch.setattr(server_network.psutil, "net_if_addrs", lambda: {"eth1": [address]})
    return tmp_path


def test_cards_that_are_up_and_state_their_speed_are_interfaces(cards):
    (card,), silent = interfaces(2, cards)
    assert (card.name, card.domain, card.link_gbps, card.address) == ("eth1", 1, 25, "10.0.0.2")
    assert card.encoding == pytest.approx((9000 - 52) / (9000 + 38), abs=1e-4)
    assert card.slot_GBps == pytest.approx(8 * 8 / 8 * 128 / 130, abs=1e-3)
    assert silent == ["eth2"]


def test_a_card_of_a_domain_that_is_not_used_counts_to_the_last(cards):
    assert interfaces(1, cards)[0][0].domain == 0


@pytest.mark.slow
def test_every_cost_is_measured():
    steps: list[str] = []
    found = measure_server("a command", elements=1 << 19, on_step=steps.append)
    assert len(steps) == 5
    assert set(found.parts.optimize_us_per_MB) == {"mean", "sgd", "nesterov", "adam", "lamb"}
    assert all(cost > 0 for cost in found.parts.optimize_us_per_MB.values())
    assert set(found.parts.costs) == {"tcp", "shared"}
    assert found.parts.costs["tcp"].worker_us_per_MB > 0
    assert found.parts.bridge_GBps is None
    assert any("bridge" in note for note in found.notes)
    assert all(rate.measured > 0 for rate in (*found.rates,))
    assert list(found.parts.problems()) == []


def test_one_domain_without_libnuma_is_said(monkeypatch):
    monkeypatch.setattr(module, "has_libnuma", lambda: False)
    assert module._sources("", 2, True)["domains"] == "libnuma is not there: one domain"


def test_the_command_writes_parts_that_plans_read(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(module, "measure_server", lambda command, on_step: MEASURED)
    path = tmp_path / "parts.json"
    assert run(["profile", "measure", "--server", "-o", str(path)]) == 0
    printed = capsys.readouterr()
    assert ["a", "+=", "b,", "a", "core", "12.00", "11.00"] in [line.split() for line in printed.out.splitlines()]
    assert ["32", "KiB", "cached", "9.00", "75%"] in [line.split() for line in printed.out.splitlines()]
    assert "the bridge between cards and memory is not measured" in printed.err
    assert store.load(path, ServerParts) == PARTS
    assert run(["profile", "measure", "--server", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rates"][0] == {
        "what": "a += b, a core",
        "measured": 12e9,
        "planned": 11e9,
    }
    assert run(["profile", "show", str(path)]) == 0
    assert "10.0.0.1" in capsys.readouterr().out


@pytest.mark.parametrize("options", [["--world", "2"], ["--compression", "fp16"], ["--sparse"], ["--pairs"]])
def test_other_measurements_are_refused_with_server(options, capsys):
    assert run(["profile", "measure", "--server", *options]) == 2
    assert "found --" in capsys.readouterr().err


@pytest.mark.parametrize("name", names(SHIPPED[ServerParts]))
def test_parts_that_ship_are_shown_with_their_sources(name, capsys):
    parts = load_named(ServerParts, name)
    assert list(parts.problems()) == []
    assert run(["profile", "show", f"server/{name}"]) == 0
    out = capsys.readouterr().out
    assert f"interfaces: {parts.name}" in out
    assert "where the numbers come from" in out
    assert run(["profile", "list"]) == 0
    assert name in capsys.readouterr().out
    assert run(["profile", "show", f"server/{name}", "--nodes", "2"]) == 2
    assert "--nodes: found parts of a parameter server" in capsys.readouterr().err


def test_the_bridge_is_the_bottleneck_of_pbox_as_its_paper_found():
    keys = tuple(ServerKey(name=f"k{place}", elements=13_287_500) for place in range(10))
    model = ServerKeys(version=1, name="VGG-11", keys=keys)
    setup = ServerSetup(workers=8, optimizer="nesterov")
    problem = problem_of(model, load_named(ServerParts, "pbox"), setup=setup)
    assert problem.carrier == "rdma"
    decisions = plan_server(problem).decisions
    assert max(decisions.parts, key=lambda part: part.time_ns).part == "bridge"
    assert 8e9 / decisions.time_ns == pytest.approx(80e9 / (2 * problem.bytes), rel=0.01)


def test_prices_that_ship_are_those_of_the_paper():
    prices = load_named(ServerPrices, "phub-25g")
    worker = 4117 + 4 * 699
    network, slow = (n + 5 * s + 3 * c for n, s, c in ((795, 658.66, 94), (260, 164.66, 31.25)))
    server = 8407 + 20 * (162.5 + 5 * 164.66 + 3 * 31.25)
    found = network_costs(prices)
    assert found.baseline == pytest.approx(1000 / (worker + network))
    assert found.served == pytest.approx(1000 * 0.98 / (worker + slow + server / 44))
