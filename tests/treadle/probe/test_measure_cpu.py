"""The costs of the CPU runtime of this machine: a profile that plans can be made and priced for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.errors import InputError
from treadle.probe import measure_cpu as measure_cpu_module
from treadle.probe.cost_fit import CostFit, RunResidual
from treadle.probe.measure_cpu import measure_cpu
from treadle.probe.resolve import load_hardware


@pytest.mark.slow
def test_a_measured_profile_prices_plans_and_predicts_runs(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["profile", "measure", "--backend", "cpu", "--world", "2", "-o", "hw.yaml", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["costs"]["memory.copy_us_per_MB"]["value"] > 0
    assert {"ping near", "copy", "shift"} <= {row["name"] for row in document["runs"]}
    hardware = store.load("hw.yaml", Hardware)
    assert hardware.transports.cpu is not None
    assert "--backend cpu --world 2" in hardware.sources["transports.cpu"]
    plan = "plan collective allreduce --hardware hw.yaml --size 64KiB -o a.json --json"
    assert run(plan.split()) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["transport"]["program_us"] == planned["time_us"]
    assert run(["check", "a.json", "--fresh"]) == 0
    assert run(["generate", "a.json", "--target", "msccl-xml", "-o", "a"]) == 0
    capsys.readouterr()
    assert run(["run", "a", "--backend", "cpu", "--sizes", "1K", "--dtypes", "float32", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["results"]
    assert all(row["predicted_seconds"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--world 1", "--world: found 1 ranks, expected 2 to 64"),
        ("--world 0", "--world: found 0 ranks, expected 2 to 64"),
        ("--world 3 --hardware cpu-2x2", "--world: found 3, expected 4: the profile has that many ranks"),
        ("--sizes 4K", "--sizes: found --backend too, expected one of the two"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(words: str, message: str, capsys) -> None:
    assert run(["profile", "measure", "--backend", "cpu", *words.split()]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fitted_us", "warning"),
    [
        (1.2, ""),
        (1.5, "off by 50%, as on a busy machine; so may be their predictions, measure again on an idle machine"),
        (7.8, "off by 680%, as on a busy machine; these costs predict nothing, measure again on an idle machine"),
    ],
)
def test_a_doubtful_fit_comes_with_a_warning(
    fitted_us: float, warning: str, tmp_path: Path, capsys, monkeypatch
) -> None:
    fit = CostFit(load_hardware("cpu-2x2"), {}, (RunResidual("copy", 4096, 1.0, fitted_us),))
    monkeypatch.setattr(measure_cpu_module, "measure_cpu", lambda *_: fit)
    assert run(["profile", "measure", "--backend", "cpu", "-o", str(tmp_path / "hw.yaml")]) == 0
    said = capsys.readouterr().err
    assert warning in said
    assert ("busy machine" in said) == bool(warning)


def test_a_profile_goes_with_a_backend(capsys) -> None:
    assert run(["profile", "measure", "--hardware", "cpu-2x2"]) == 2
    assert "--hardware: found no --backend, expected one with it" in capsys.readouterr().err


def test_hosts_that_measure_together_need_their_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="found nothing, expected the profile of these hosts"):
        measure_cpu(None, None, "x")
    with pytest.raises(InputError, match="found 2 processes, expected the 4 ranks of cpu-2x2"):
        measure_cpu(None, load_hardware("cpu-2x2"), "x")


def test_the_slowest_rank_counts_and_a_pass_on_a_busy_machine_does_not() -> None:
    """Two ranks, two passes of two runs: the first run is twice as slow in its first pass."""
    first = [[[4e-6, 4e-6, 4e-6], [5e-6, 7e-6]], [[1e-6, 1e-6, 2e-6], [6e-6, 6e-6]]]
    second = [[[1e-6, 9e-6, 1e-6], [4e-6, 8e-6]], [[2e-6, 0e-6, 1e-6], [7e-6, 1e-6]]]
    found = measure_cpu_module.slowest_rank_us([first, second])
    assert found == [pytest.approx([2, 1, 2]), pytest.approx([5, 8, 7, 6])]
