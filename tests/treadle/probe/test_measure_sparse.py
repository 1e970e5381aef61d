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
    assert {row.experiment.rate for row in found.rows} == RATES
    assert all(getattr(found.costs.work, rate) > 0 for rate in RATES)
    assert len(steps) == len(found.rows)
    assert "`a command`" in found.costs.sources["work"]


def test_a_rate_is_the_mean_of_its_experiments_and_a_poor_one_is_doubtful():
    given = [Experiment("call", "a", 1, 200.0), Experiment("call", "b", 1, 800.0)]
    found = fitted(given, "", 1)
    assert found.costs.work.call == 400
    assert [round(row.residual, 3) for row in found.rows] == [1.0, -0.5]
    assert found.doubt.startswith("call: a is off by +100%")
    assert fitted(given[:1], "", 1).doubt == ""


def test_the_command_writes_costs_that_plans_read(monkeypatch, tmp_path, capsys):
    found = fitted([Experiment("hash_per_index", "10 indices", 10, 40.0)], "treadle profile measure --sparse", 2)
    monkeypatch.setattr(module, "measure_sparse", lambda command, on_step: found)
    path = tmp_path / "costs.yaml"
    assert run(["profile", "measure", "--sparse", "-o", str(path)]) == 0
    assert ["hash", "per", "index", "4"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    assert store.load(path, SparseCosts) == found.costs
    assert run(["profile", "measure", "--sparse", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["experiments"] == [
        {"rate": "hash_per_index", "what": "10 indices", "measured_ns": 40, "residual": 0.0}
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
