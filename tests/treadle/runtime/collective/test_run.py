"""What `treadle run` says where a measured collective differs from its prediction."""

from __future__ import annotations

from dataclasses import replace as replaced

import pytest
from msgspec.structs import replace

from treadle.planner.documents.transports import CpuTransport, MessageCost, Transports
from treadle.probe.resolve import load_hardware
from treadle.runtime.collective.compare import Measured, _predicted
from treadle.runtime.collective.run import _hosts_of, _misses, _print, _ratio


def row(predicted: float, seconds: float, off: str | None, size: int = 1024) -> Measured:
    return Measured(
        program="a.xml",
        dtype="float32",
        op="sum",
        elements=size // 4,
        bytes=size,
        max_error=0.0,
        tolerance=0.0,
        seconds=seconds,
        reference_seconds=1.0,
        predicted_seconds=predicted,
        off=off,
    )


def test_the_worst_row_of_each_term_is_named_with_the_term_in_words() -> None:
    rows = [
        row(1.0, 1.2, None),
        row(1.0, 2.0, "latency"),
        row(1.0, 0.25, "latency", 4096),
        row(2.0, 3.0, "copies", 1 << 20),
    ]
    assert _misses(rows) == [
        "a.xml at 4 KiB of float32: predicted 1000 ms, most of it latency; measured 250 ms, 4.0 times as fast",
        "a.xml at 1 MiB of float32: predicted 2000 ms, most of it copies; measured 3000 ms, 1.5 times as long",
    ]


def test_a_prediction_far_off_is_said_in_whole_times() -> None:
    (line,) = _misses([row(3e-6, 240e-6, "call")])
    assert line.endswith("predicted 3 us, most of it the start of a call; measured 240 us, 80 times as long")
    (line,) = _misses([row(240e-6, 3e-6, "call")])
    assert line.endswith("measured 3 us, 80 times as fast")


def test_a_prediction_for_several_hosts_is_no_miss_of_this_one(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row(1.0, 103.0, "latency")]
    _print(rows, 4, "cpu-2x2", _hosts_of(load_hardware("cpu-2x2"), 4), joined=False)
    said = capsys.readouterr().err
    assert said == "the prediction is for 2 hosts of cpu-2x2, and all processes ran on this one\n"
    _print(rows, 2, "cpu-2x2", _hosts_of(load_hardware("cpu-2x2"), 2), joined=False)
    assert "103 times as long" in capsys.readouterr().err


def test_costs_of_one_host_predict_this_one() -> None:
    hardware = load_hardware("cpu-2x2")
    cost = MessageCost(message_us=1.0, copy_us_per_MB=1.0, sum_us_per_MB=1.0, latency_us=1.0)
    here = CpuTransport(
        call_us=1.0, step_us=1.0, copy_us_per_MB=1.0, sum_us_per_MB=1.0, memory=cost, cores=2, hosts="one"
    )
    assert _hosts_of(replace(hardware, transports=Transports(cpu=here)), 4) == 1
    assert _hosts_of(replace(hardware, transports=Transports(cpu=replace(here, hosts="nodes"))), 4) == 2


def test_rows_without_elements_have_no_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    empty = replaced(row(1.0, 1.0, None, 0), predicted_seconds=None)
    assert _predicted(empty, None, None, None, "cpu") is empty  # type: ignore[arg-type]
    _print([empty], 4, "ring4", 1, joined=False)
    assert capsys.readouterr().out.split()[-2:] == ["-", "-"]


@pytest.mark.parametrize(("ratio", "text"), [(1.734, "1.73"), (57.79, "57.79"), (0.12, "0.12"), (0.0026, "0.0026")])
def test_small_ratios_keep_a_digit(ratio: float, text: str) -> None:
    assert _ratio(ratio) == text
