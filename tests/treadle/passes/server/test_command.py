"""`treadle plan server`: from keys, parts and problems, what it prints, draws and writes, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from tests.planner.passes.server.pbox import PRICES, pbox, served
from treadle.cli.main import run
from treadle.passes.server.words import policy_rates
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.server_parts import ServerDomain, ServerInterface, ServerParts
from treadle.planner.passes.server.keys import ServerKey, ServerKeys

PARTS = ServerParts(
    version=1,
    name="box",
    domains=(ServerDomain(cores=4), ServerDomain(cores=4)),
    interfaces=tuple(ServerInterface(name=f"ib{each}", domain=each // 2, link_gbps=56) for each in range(4)),
    memory_GBps=120,
    bridge_GBps=30,
)
KEYS = ServerKeys(
    version=1,
    name="net",
    keys=tuple(ServerKey(name=f"layer{each}", elements=1_000_000, ready_ns=each * 10**6) for each in range(5)),
    compute_ns=10**7,
)
PLAN = ["plan", "server", "--keys", "keys.json", "--parts", "parts.json", "--workers", "8", "-o", "plan.json"]


@pytest.fixture
def files(here: Path) -> Path:
    """Keys, parts of a server, prices and a whole problem."""
    store.save(KEYS, here / "keys.json")
    store.save(PARTS, here / "parts.json")
    store.save(PRICES, here / "prices.json")
    store.save(served(46_800_000, pbox(memory_bytes=1 << 30)), here / "problem.json")
    return here


def test_keys_and_parts_are_planned_and_described(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PLAN, "--prices", "prices.json"]) == 0
    printed = capsys.readouterr()
    plan = store.load(files / "plan.json", Plan)
    assert set(plan.inputs) == {"keys", "parts", "prices"}
    for text in (
        "1 server (ncc) for 8 workers",
        "chunks of 32 KiB on 4 cores, keys by interface and core; tall, cached",
        "bottleneck   bridge, ",
        "to hide an exchange, a server needs 256 Gbit/s",
        "proved optimal",
        "headroom",
        "without servers (+26.1%)",
        "exchanges/s; workers by interface ",
    ):
        assert text in printed.out
    assert printed.err == "no costs of cores are known for the carrier tcp, so they take no time\n"
    assert run(["check", "plan.json"]) == 0


def test_a_missing_measurement_is_a_line_of_its_own(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.save(replace(PARTS, bridge_GBps=None), files / "parts.json")
    assert run(PLAN) == 0
    assert "the bridge between cards and memory was not measured" in capsys.readouterr().err


def test_what_would_be_faster_is_listed(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PLAN, "--aggregator", "bypass", "--policy", "worker-by-interface", "--json"]) == 0
    slow = json.loads(capsys.readouterr().out)
    advised = {each["change"]: each["time_ns"] for each in slow["advice"]}
    assert run([*PLAN, "--aggregator", "bypass", "--policy", "key-by-interface", "--json"]) == 0
    assert advised["keys by interface"] == json.loads(capsys.readouterr().out)["time_ns"] < slow["time_ns"]


def test_other_amounts_are_printed_and_drawn(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question = ["--problem", "problem.json", "--what-if", "interfaces=4..10", "-o", "plan.json"]
    assert run(["plan", "server", *question, "--draw", "balance.svg"]) == 0
    printed = capsys.readouterr().out
    rows = printed.split("with other interfaces\n")[1].splitlines()[1:8]
    assert [row.split()[0] for row in rows] == ["4", "5", "6", "7", "8", "9", "10"]
    assert "interface ib0" in rows[0]
    assert "bridge" in rows[-1]
    drawn = (files / "balance.svg").read_text()
    ElementTree.fromstring(drawn)
    assert ">worker link<" in drawn
    assert run(["plan", "server", *question, "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)["what_if"]
    assert [each["interfaces"] for each in answers] == [4, 5, 6, 7, 8, 9, 10]
    assert answers[-1]["exchanges_per_s"] == answers[-2]["exchanges_per_s"] > answers[0]["exchanges_per_s"]


def test_racks_show_both_sides(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PLAN, "--racks", "2", "--rack-gbps", "10"]) == 0
    assert "two levels; ns for a MiB: 1.67772e+06 flat, " in capsys.readouterr().out


def test_nodes_of_hardware_are_the_workers(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--keys", "keys.json", "--parts", "parts.json", "--hardware", "cluster-25gbe", "-o", "plan.json"]
    assert run(["plan", "server", *options, "--nodes", "4", "--mode", "ncs"]) == 0
    assert "4 servers (ncs) for 4 workers" in capsys.readouterr().out


def test_too_little_memory_is_infeasible(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.save(replace(PARTS, memory_bytes=1 << 20), files / "parts.json")
    assert run(PLAN) == 3
    assert "bytes of memory, box has 1048576" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give one of --trace, --keys and --problem"),
        (["--keys", "keys.json", "--problem", "problem.json"], "give one of"),
        (["--keys", "keys.json"], "need --parts or --hardware"),
        (["--keys", "keys.json", "--parts", "parts.json"], "--workers: found no number of workers"),
        (["--keys", "parts.json", "--parts", "parts.json"], "expected 'server-keys'"),
        (["--problem", "problem.json", "--workers", "3"], "--problem names its machine and its workers"),
        (["--problem", "problem.json", "--draw", "x.svg"], "--draw belongs to --what-if"),
        (["--problem", "problem.json", "--what-if", "cards=3"], "interfaces"),
        (["--problem", "problem.json", "--chunk", "100"], "a multiple of 64 bytes"),
        (["--problem", "problem.json", "--levels", "flat"], "expected several racks"),
        (["--keys", "keys.json", "--parts", "parts.json", "--shards", "2"], "--shards belongs to --mode ncs"),
    ],
)
def test_what_does_not_fit_is_one_line(
    files: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert run(["plan", "server", *options, "-o", "plan.json"]) == 2
    assert message in capsys.readouterr().err


def test_no_other_policy_is_planned_once_the_time_is_over(files: Path) -> None:
    assert run(PLAN) == 0
    decisions = store.load(files / "plan.json", Plan).decisions
    assert list(policy_rates(decisions, lambda: True)) == [decisions.policy]
    both = policy_rates(decisions, lambda: False)
    assert len(both) == 2
    assert both[decisions.policy] == max(both.values())
