"""`treadle simulate FILE.xml`: what it prints, what it needs, and that plans are still simulated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.codegen.collective.test_check import ring_program
from tests.codegen.collective.test_simulate_cpu import hosts
from treadle.cli.main import run
from treadle.codegen.collective.msccl import xml
from treadle.codegen.collective.simulate_cpu import simulate_cpu
from treadle.planner.documents import store


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ring.xml").write_text(xml.emit(ring_program(8)))
    return tmp_path


def test_time_bandwidth_and_what_is_busy(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "ring.xml", "--hardware", "mi300x", "--size", "16MiB"]) == 0
    head, message, block, *links = capsys.readouterr().out.splitlines()
    assert head.startswith("ring.xml: ")
    assert "us for 16 MiB on mi300x, " in head
    assert "on the bus)" in head
    assert message == "  Simple: chunks of 2 MiB in 1 slice, messages of up to 2 MiB"
    assert block.startswith("  busiest threadblock")
    assert len(links) == 4


def test_json_and_perfetto(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", "ring.xml", "--hardware", "mi300x", "--size", "64MiB", "--perfetto", "ring.json"]
    assert run([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["size_bytes"], result["slices"], result["message_bytes"]) == (64 << 20, 4, 2 << 20)
    assert result["bus_gbps"] == pytest.approx(result["algorithm_gbps"] * 14 / 8, abs=0.002)
    assert result["algorithm_gbps"] == pytest.approx((64 << 20) / result["time_us"] / 1e3, abs=0.002)
    assert result["transport_of_this_machine"]
    trace = json.loads((here / "ring.json").read_text())
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(spans) == 4 * 8 * 2 * 14, "4 slices of 14 steps on 2 threadblocks of 8 gpus"
    assert max(span["ts"] + span["dur"] for span in spans) == pytest.approx(result["time_us"] - 6.31, rel=0.01)
    assert run(arguments) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "wrote ring.json"


def test_a_machine_nobody_measured_says_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "ring.xml", "--hardware", "ring4", "--nodes", "1", "--size", "1MiB"]) == 2
    assert "ring4: found 4 ranks, expected at least the program's 8" in capsys.readouterr().err
    (here / "ring.xml").write_text(xml.emit(ring_program(4)))
    assert run(["simulate", "ring.xml", "--hardware", "ring4", "--size", "1MiB"]) == 0
    assert "ring4 has no `transport`" in capsys.readouterr().out


def test_more_nodes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "ring.xml").write_text(xml.emit(ring_program(16)))
    assert run(["simulate", "ring.xml", "--hardware", "mi300x", "--nodes", "2", "--size", "1MiB", "--json"]) == 0
    assert any(name.startswith("nic") for name in json.loads(capsys.readouterr().out)["busy"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ring.xml"], "found MSCCL XML, expected --hardware and --size with it"),
        (["ring.xml", "--hardware", "mi300x"], "expected --hardware and --size"),
        (["ring.xml", "--hardware", "mi300x", "--size", "much"], "--size: found 'much', expected a size"),
        (["ring.xml", "--hardware", "mi300x", "--size", "0"], "--size: found '0', expected at least 1 byte"),
        (
            ["ring.xml", "--hardware", "mi300x", "--size", "2P"],
            "--size: found 2251799813685248 bytes, expected at most 1 PiB",
        ),
        (["plan.json", "--hardware", "mi300x"], "found a document with --hardware, expected MSCCL XML"),
        (
            ["ring.xml", "--hardware", "mi300x", "--size", "1K", "--perfetto", "ring.xml"],
            "found 'ring.xml', expected a file that ends in .json",
        ),
    ],
)
def test_what_is_missing_or_too_much_is_said(
    arguments: list[str], message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "plan.json").write_text("{}")
    assert run(["simulate", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_wrong_file_is_not_simulated(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (here / "ring.xml").read_text().replace('type="rrc"', 'type="r"', 1)
    (here / "ring.xml").write_text(text)
    assert run(["simulate", "ring.xml", "--hardware", "mi300x", "--size", "1MiB"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "ring.xml: rejected: " in captured.err


def test_plans_are_simulated_as_before(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = ["plan", "collective", "allgather", "--hardware", "ring4", "--sketch", "ring", "--size", "64K"]
    assert run([*plan, "-o", "p.json"]) == 0
    capsys.readouterr()
    assert run(["simulate", "p.json", "--perfetto", "p.trace.json"]) == 0
    assert " us predicted; its messages alone take " in capsys.readouterr().out
    events = json.loads((here / "p.trace.json").read_text())["traceEvents"]
    assert any("KiB" in event["name"] for event in events if event["ph"] == "X")


def test_cpus_with_costs_are_simulated_as_the_cpu_runtime(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = hosts(8)
    (here / "hosts.json").write_text(store.dumps(profile))
    arguments = ["simulate", "ring.xml", "--hardware", "hosts.json", "--size", "1MiB"]
    assert run([*arguments, "--perfetto", "t.json", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["runtime"] == "cpu"
    assert result["time_us"] == round(simulate_cpu(ring_program(8), profile, 1 << 20).time_us, 3)
    assert result["terms_us"]["links"] > 0
    assert (here / "t.json").exists()
    assert run(arguments) == 0
    text = capsys.readouterr().out
    assert "on the CPU runtime" in text
    assert "the rate of links" in text
    assert "A100" not in text


def test_cpus_without_costs_are_called_gpus(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "ring.xml", "--hardware", "racks-2x4", "--size", "1MiB"]) == 0
    assert "has CPUs and no `transports.cpu`, so this is the time on GPUs" in capsys.readouterr().out
