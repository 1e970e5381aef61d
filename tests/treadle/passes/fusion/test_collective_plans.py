"""`treadle generate --collective`: the collectives of a fusion plan travel as collective plans say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from treadle.cli.main import run

SGD = Path(__file__).parents[4] / "examples" / "fusion" / "sgd.py"


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fusion plan of four ranks, and collective plans to carry it or not."""
    folder = tmp_path_factory.mktemp("plans")
    fusion = [
        "plan",
        "fusion",
        str(SGD),
        "--hardware",
        "switch4",
        "--bind",
        "N=203",
        "-o",
        str(folder / "sgd.plan.json"),
    ]
    assert run(fusion) == 0
    for name, collective, hardware, method in (
        ("pairs", "allreduce", "switch4", "all-pairs"),
        ("tree", "allreduce", "switch4", "double-tree"),
        ("made", "allreduce", "ring4", "greedy"),
        ("three", "allreduce", "line3", "greedy"),
        ("spread", "broadcast", "switch4", "binomial"),
    ):
        made = ["plan", "collective", collective, "--hardware", hardware, "--method", method, "--size", "4K"]
        assert run([*made, "--protocol", "Simple", "-o", str(folder / f"{name}.plan.json")]) == 0
    return folder


def generate(plans: Path, name: str, *more: str) -> int:
    collective = str(plans / f"{name}.plan.json")
    output = str(plans / f"{name}-kernels")
    return run(
        ["generate", str(plans / "sgd.plan.json"), "--target", "cuda", "--collective", collective, "-o", output, *more]
    )


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("name", ["pairs", "tree", "made"])
def test_kernels_carry_the_plan_and_equal_the_interpreter(plans, capsys, name):
    assert generate(plans, name) == 0
    folder = plans / f"{name}-kernels"
    facts = json.loads((folder / "artefact.json").read_text())["facts"]
    assert facts["collectives"] == [f"{name}.plan.json"]
    (ran,) = facts["choices"].values()
    assert ran.startswith(f"plan {name}.plan.json, Simple, ")
    assert "instead" not in facts
    text = (folder / "schedule.cu").read_text()
    assert f"//     by {ran}\n" in text
    assert f"// Collective plan {name}.plan.json: " in text
    assert facts["digest"] in text
    capsys.readouterr()
    assert run(["run", str(folder), "--backend", "fibers", "--repeats", "2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["results"]
    assert rows[0]["bits"], "whole numbers have no rounding"
    assert all(row["good"] for row in rows)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("three", "three.plan.json: found a plan for 3 ranks, expected one for 4"),
        ("spread", "spread.plan.json: found a plan for broadcast, expected one for allreduce"),
    ],
)
def test_plans_of_other_ranks_and_collectives_are_refused(plans, capsys, name, message):
    assert generate(plans, name) == 2
    assert message in capsys.readouterr().err


def test_an_edited_collective_plan_is_another_schedule(plans, capsys):
    """The kernels in a folder are those of the collective plan in it."""
    assert generate(plans, "pairs") == 0
    folder = plans / "pairs-kernels"
    shutil.copy(plans / "tree.plan.json", folder / "pairs.plan.json")
    assert run(["run", str(folder), "--backend", "fibers"]) in (1, 2)
    assert "pairs.plan.json" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["nccl", "nccl-device"])
def test_folders_carry_the_headers_that_they_include(plans, target):
    folder = plans / target
    assert run(["generate", str(plans / "sgd.plan.json"), "--target", target, "-o", str(folder)]) == 0
    carried = {path.name for path in folder.glob("*.h")}
    used = "".join(path.read_text() for path in (*folder.glob("*.cu"), *folder.glob("*.h")))
    assert {name for name in carried if f'"{name}"' not in used} == set()
    if target == "nccl":
        assert "treadle_collective.h" not in carried, "NCCL moves the data"
