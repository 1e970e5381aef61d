"""generate --target mscclpp-json, and treadle check for MSCCL++ plans, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.planner.plans import collective_plan
from treadle.cli.main import run
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.sketch import Sketch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan for a ring of four and what it became."""
    path = tmp_path_factory.mktemp("mscclpp")
    hardware = store.load(resources.locate("profiles", "ring4"), Hardware)
    sketch = store.load(resources.locate("sketches", "ring"), Sketch)
    plan = collective_plan("allreduce", hardware, sketch, size_bytes=65536, files={"hardware": "h", "sketch": "s"})
    store.save(plan, path / "allreduce.plan.json")
    arguments = ["generate", str(path / "allreduce.plan.json"), "--target", "mscclpp-json", "-o", str(path / "out")]
    assert run(arguments) == 0
    return path / "out"


def test_a_plan_becomes_two_files_that_are_accepted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(path.name for path in folder.iterdir()) == [
        "allreduce.json",
        "allreduce_inplace.json",
        "artefact.json",
        "plan.json",
    ]
    capsys.readouterr()
    assert run(["check", str(folder / "allreduce.json"), str(folder)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "accepted (MSCCL++ allreduce of 4 ranks, " in first
    assert "operations, out of place)" in first
    assert "mscclpp-json artefacts, 3 files, generated again to the same text" in second


def test_a_broken_plan_is_rejected_with_its_place(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads((folder / "allreduce.json").read_text())
    operations = next(
        block["ops"]
        for block in document["gpus"][2]["threadblocks"]
        if any(op["name"] == "ppkt" for op in block["ops"])
    )
    del operations[next(place for place, op in enumerate(operations) if op["name"] == "ppkt")]
    (tmp_path / "broken.json").write_text(json.dumps(document))
    assert run(["check", str(tmp_path / "broken.json")]) == 1
    assert "deadlock: waits for a packet of scratch chunk" in capsys.readouterr().out


def test_what_is_no_plan_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "odd.json").write_text('{"gpus": [], "protocol": "LL128"}')
    assert run(["check", str(tmp_path / "odd.json")]) == 2
    assert "odd.json: found no MSCCL++ execution plan: " in capsys.readouterr().err
