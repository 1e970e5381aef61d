"""Artefact folders: whole, listed with digests, never on top of other files."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from tests.codegen.collective.algorithms import line_alltoall, ring_allreduce
from treadle.codegen import targets
from treadle.codegen.emit import text_digest, write
from treadle.planner.documents import store
from treadle.planner.documents.artefact import Artefact
from treadle.planner.documents.plan import VERSION, Certificate, Plan, Prediction, Provenance
from treadle.planner.errors import CheckFailed, InputError


def plan_of(decisions) -> Plan:
    """A plan around hand-made decisions."""
    return Plan(
        version=VERSION,
        decisions=decisions,
        prediction=Prediction(time_us=decisions.makespan_ns / 1000),
        certificate=Certificate(
            verdict="accepted",
            checker="treadle.planner.passes.collective.check",
            objective=decisions.makespan_ns,
            lower_bound=decisions.makespan_ns,
            unit="ns",
            argument="made by hand",
            gap=0.0,
            optimal=True,
        ),
        provenance=Provenance(tool="treadle", method="hand"),
    )


RING = targets.generate(plan_of(ring_allreduce(4)), "plans/ring.plan.json")


def test_a_folder_holds_programs_plan_and_manifest(tmp_path: Path) -> None:
    manifest = write(RING, tmp_path / "a" / "b")
    names = {path.name for path in (tmp_path / "a" / "b").iterdir()}
    assert names == {"allreduce.xml", "allreduce_inplace.xml", "artefact.json", "plan.json"}
    assert store.load(tmp_path / "a" / "b" / "artefact.json", Artefact) == manifest
    for name, digest in manifest.files.items():
        assert text_digest((tmp_path / "a" / "b" / name).read_text()) == digest
    assert manifest.plan.file == "ring.plan.json"
    assert manifest.facts["simulated_ns"] == {"allreduce.xml": 54000, "allreduce_inplace.xml": 54000}


def test_writing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write(targets.generate(plan_of(ring_allreduce(4)), "ring.plan.json"), tmp_path / name)
    for path in (tmp_path / "first").iterdir():
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes()


def test_older_artefacts_are_replaced(tmp_path: Path) -> None:
    write(RING, tmp_path)
    write(targets.generate(plan_of(line_alltoall()), "line.plan.json"), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"alltoall.xml", "artefact.json", "plan.json"}


def test_other_files_stay_and_none_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for name in ("allreduce.xml", "artefact.json"):
        (tmp_path / name).write_text("mine")
        with pytest.raises(InputError, match=rf"{name}: found a file that .* would be replaced; choose another"):
            write(RING, tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {"thesis.tex", name}
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()
    write(RING, tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    (tmp_path / "allreduce.xml").write_text("<algo/>")
    write(RING, tmp_path)
    assert (tmp_path / "allreduce.xml").read_text() == RING.files["allreduce.xml"], "it is listed, so it is generated"


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(InputError, match="found a file, expected a folder"):
        write(RING, tmp_path / "out")


def test_targets_and_passes_must_agree() -> None:
    with pytest.raises(InputError, match=r"a collective plan has no target torch, .* expected --target msccl-xml"):
        targets.generate(plan_of(ring_allreduce(4)), "ring.plan.json", target="torch")


def test_alltoall_has_no_program_in_place() -> None:
    assert set(targets.generate(plan_of(line_alltoall()), "x").files) == {"alltoall.xml", "plan.json"}


def test_a_wrong_plan_generates_nothing() -> None:
    decisions = ring_allreduce(4)
    late = structs.replace(decisions, transfers=decisions.transfers[1:])
    quick = structs.replace(decisions, makespan_ns=1)
    with pytest.raises(CheckFailed, match="not generated, its check failed") as caught:
        targets.generate(plan_of(late), "late.plan.json")
    assert any("without the contributions of" in finding for finding in caught.value.findings)
    with pytest.raises(CheckFailed, match="not generated, its check failed") as caught:
        targets.generate(plan_of(quick), "quick.plan.json")
    assert caught.value.findings[0].startswith("makespan_ns: found 1,")
