"""Costs of the kernels of sparse gradients: every rate is measured, and explains its experiments."""

from __future__ import annotations

import json

import pytest

from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.documents.sources import SHIPPED, load_named
from treadle.planner.documents.sparse_costs import SparseCosts, SparseWork
from treadle.planner.resources import names
from treadle.probe import measure_sparse as module
from treadle.probe.measure_sparse import Experiment, fitted, measure_sparse

RATES = set(SparseWork.__struct_fields__) - {"extract_per_word"}


@pytest.mark.slow
def test_every_rate_is_measured(monkeypatch):
    monkeypatch.setattr(module, "PASSES", 1)
    steps: list[str] = []
    found = measure_sparse("a command", sizes=(1 << 12,), on_step=steps.append)
    assert {rate for row in found.rows for rate in row.experiment.items} == RATES
    kinds = {row.experiment.work: list(row.experiment.items) for row in found.rows}
    assert all(any(getattr(found.costs.work, rate) > 0 for rate in rates) for rates in kinds.values())
    assert len(steps) == len(found.rows)
    assert "`a command`" in found.costs.sources["work"]


def rows(width: int, count: int, ns: float) -> Experiment:
    items = {"add_per_entry": count, "add_per_value": count * width}
    return Experiment("add", f"{count} entries of {width}", items, ns)


def test_times_of_rows_of_different_widths_give_a_rate_for_an_entry_and_one_for_a_value():
    given = [rows(width, count, count * (30 + 0.5 * width)) for width, count in ((1, 1000), (16, 70), (64, 9))]
    found = fitted(given, "", 1)
    assert (found.costs.work.add_per_entry, found.costs.work.add_per_value) == (30, 0.5)
    assert max(abs(row.residual) for row in found.rows) < 1e-9
    assert found.doubt == ""


def test_no_rate_is_below_zero():
    # 32 times as many values take 64 times as long, so that a line through both begins below zero.
    work = fitted([rows(2, 10, 10.0), rows(64, 10, 640.0)], "", 1).costs.work
    assert work.add_per_entry == 0
    assert work.add_per_value > 0


def test_experiments_that_the_rates_do_not_explain_are_doubtful():
    given = [Experiment("call", "a", {"call": 1}, 200.0), Experiment("call", "b", {"call": 1}, 800.0)]
    found = fitted(given, "", 1)
    # The least sum of squares of (c / 200 - 1) and (c / 800 - 1).
    assert found.costs.work.call == pytest.approx(200 * 800 * 1000 / (200**2 + 800**2), rel=1e-3)
    assert [round(row.residual, 2) for row in found.rows] == [0.18, -0.71]
    assert found.doubt.startswith("call: b is off by -71%")
    assert fitted(given[:1], "", 1).doubt == ""


def test_the_command_writes_costs_that_plans_read(monkeypatch, tmp_path, capsys):
    found = fitted(
        [Experiment("hash", "10 indices", {"hash_per_index": 10}, 40.0)], "treadle profile measure --sparse", 2
    )
    monkeypatch.setattr(module, "measure_sparse", lambda command, on_step: found)
    path = tmp_path / "costs.yaml"
    assert run(["profile", "measure", "--sparse", "-o", str(path)]) == 0
    assert ["hash", "per", "index", "4"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    assert store.load(path, SparseCosts) == found.costs
    assert run(["profile", "measure", "--sparse", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["experiments"] == [
        {"work": "hash", "what": "10 indices", "measured_ns": 40, "residual": 0.0}
    ]
    assert run(["profile", "show", str(path)]) == 0
    assert "2 threads" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options", [["--world", "2"], ["--sizes", "4K"], ["--compression", "fp16"], ["--together", "2"]]
)
def test_other_measurements_are_refused_with_it(options, capsys):
    assert run(["profile", "measure", "--sparse", *options]) == 2
    assert f"{options[0]}: found --sparse too" in capsys.readouterr().err


@pytest.mark.parametrize("name", names(SHIPPED[SparseCosts]))
def test_costs_that_ship_are_shown_with_their_sources(name, capsys):
    costs = load_named(SparseCosts, name)
    assert costs.sources
    assert run(["profile", "show", f"sparse/{name}"]) == 0
    out = capsys.readouterr().out
    assert f"costs of sparse gradients: {costs.name}" in out
    assert "where the numbers come from" in out
    assert run(["profile", "show", f"sparse/{name}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["costs"]["name"] == costs.name
    assert run(["profile", "show", f"sparse/{name}", "--nodes", "2"]) == 2
    assert "--nodes: found costs of sparse gradients" in capsys.readouterr().err
