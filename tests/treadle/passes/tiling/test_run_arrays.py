"""`treadle run` of a plan of arrays, and options that do not go with one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.planner.passes.tiling.tiling_plans import PROBLEM
from tests.treadle.cli.test_json_output import KEYS
from treadle.cli.main import run
from treadle.codegen import emit
from treadle.codegen.targets import generate
from treadle.planner.passes.tiling.planning import plan_tiling


def folder_of(place: Path, target: str, problem=PROBLEM) -> str:
    emit.write(generate(plan_tiling(problem), "plan.json", target=target), place)
    return str(place)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["tiling-config", "dask"])
def test_a_plan_runs_next_to_numpy(target, tmp_path, capsys):
    if target == "dask":
        pytest.importorskip("distributed")
    assert run(["run", folder_of(tmp_path, target), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.pop("schema") == "treadle.run-tiles/1"
    assert found.keys() == KEYS["run-tiles"][0]
    assert found["arrays"] == [{"name": "s", "difference": 0.0}]
    assert found["moved_bytes"] == {"planned": 48, "measured": 48}
    assert (found["findings"], found["workers"], sum(found["received_bytes"])) == ([], 2, 48)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--backend", "gloo"), "--backend: found gloo, expected cpu: tiles are arrays of NumPy"),
        (("--world", "3"), "--world: found 3, expected 2: the mesh has that many workers"),
    ],
)
def test_options_that_do_not_fit(options, message, tmp_path, capsys):
    assert run(["run", folder_of(tmp_path, "tiling-config"), *options]) == 2
    assert message in capsys.readouterr().err


def test_values_that_are_not_in_the_plan_are_named(tmp_path, capsys):
    value = replace(PROBLEM.nodes[0], operator="value", function="value", params={})
    problem = replace(PROBLEM, nodes=(value, *PROBLEM.nodes[1:]))
    assert run(["run", folder_of(tmp_path, "tiling-config", problem)]) == 2
    assert "the values of x are not in the plan" in capsys.readouterr().err


def test_functions_that_a_plan_names_are_listed_and_imported_by_run_only(tmp_path, capsys):
    node = PROBLEM.nodes[1]
    function = "no_such_module_of_mine:f"
    problem = replace(PROBLEM, nodes=(PROBLEM.nodes[0], replace(node, function=function), *PROBLEM.nodes[2:]))
    folder = folder_of(tmp_path, "tiling-config", problem)
    assert run(["check", folder]) == 0
    assert run(["run", folder, "--backend", "gloo"]) == 2
    assert f"runs functions that the plan names: {function}" in capsys.readouterr().err


def test_no_scheduler_at_the_address(tmp_path, capsys, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("treadle.runtime.tiling.dask_cluster.CONNECT_SECONDS", 0.3)
    monkeypatch.setenv("DASK_SCHEDULER", "tcp://127.0.0.1:9")
    assert run(["run", folder_of(tmp_path, "dask")]) == 2
    assert "DASK_SCHEDULER: no scheduler of Dask answers at tcp://127.0.0.1:9" in capsys.readouterr().err
