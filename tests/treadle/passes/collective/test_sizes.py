"""`treadle plan collective --sizes` and what follows it, in the caller's folder."""

from __future__ import annotations

import json
import shutil

import pytest

from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.documents.selection import Selection
from treadle.planner.passes.collective.planning import METHODS


@pytest.fixture(scope="module")
def sweep_of_rings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rings") / "many"
    given = ["--hardware", "mesh4", "--sizes", "1K,64K,4M", "--method", "ring", "--sketch", "mesh", "-o", str(folder)]
    assert run(["plan", "collective", "allreduce", *given]) == 0
    return folder


@pytest.fixture
def rings(here, sweep_of_rings):
    """The folder `many`, a sweep planned once for all tests."""
    return shutil.copytree(sweep_of_rings, here / "many")


def swept(*more: str) -> int:
    given = ["--hardware", "mesh4", "--sizes", "1K,64K,4M", "-o", "many"]
    return run(["plan", "collective", "allreduce", *given, *more])


def test_a_sweep_is_planned_checked_and_generated(here, capsys, monkeypatch):
    table = {name: METHODS[name] for name in ("binomial", "ring")}
    monkeypatch.setattr(
        "treadle.planner.passes.collective.planning.METHODS", table
    )  # the searches have tests of their own
    assert swept() == 0
    out = capsys.readouterr().out
    selection = store.load("many/selection.json", Selection)
    plans = {entry.plan.file for entry in selection.entries}
    sketches = {"small.sketch.json", "large.sketch.json"}
    assert {path.name for path in (here / "many").iterdir()} == {*plans, *sketches, "selection.json"}
    assert out.count(".plan.json") == len(selection.entries)
    assert run(["check", "--fresh", "many/selection.json"]) == 0
    assert f"{len(plans)} plans in {len(selection.entries)} ranges; inputs hardware, sketch checked" in (
        capsys.readouterr().out.replace("1 plan in", "1 plans in")
    )
    for target in ("msccl-xml", "nccl-tuner"):
        assert run(["generate", "many/selection.json", "--target", target, "-o", target]) == 0
        assert run(["check", target]) == 0
        assert run(["generate", f"{target}/selection.json", "--target", target, "-o", target]) == 0
    assert (here / "nccl-tuner" / "nccl_tuner.conf").is_file()


def test_small_and_large_sizes_get_sketches_of_their_own(here, capsys):
    """A broadcast is cut into more pieces the larger it is. The folder of artefacts carries both sketches along."""
    given = ["plan", "collective", "broadcast", "--hardware", "ring4", "--method", "milp", "-o", "many", "--sizes"]
    assert run([*given, "1K,64M"]) == 0
    names = {path.name for path in (here / "many").iterdir()}
    assert {"small.sketch.json", "large.sketch.json"} <= names
    assert run(["check", "--fresh", "many/selection.json"]) == 0
    used = {store.load(path, Plan).inputs["sketch"].file for path in (here / "many").glob("*.plan.json")}
    assert used == {"small.sketch.json", "large.sketch.json"}
    assert run(["generate", "many/selection.json", "-o", "away"]) == 0
    assert run(["check", "--fresh", "away"]) == 0
    assert "generated again to the same text" in capsys.readouterr().out
    sketches = {path: path.read_bytes() for path in (here / "many").glob("*.sketch.json")}
    assert run([*given, "1K"]) == 0
    names = {path.name for path in (here / "many").iterdir()}
    assert names == {"0-milp.plan.json", "selection.json", "sketch.json", *(path.name for path in sketches)}
    assert all(path.read_bytes() == text for path, text in sketches.items()), "a user may have edited them"


def test_a_tuner_file_without_rows_is_said_to_be_so(here, capsys):
    given = ["--hardware", "mesh4", "--sizes", "1K,64K", "--method", "all-pairs", "-o", "many"]
    assert run(["plan", "collective", "alltoall", *given]) == 0
    capsys.readouterr()
    assert run(["generate", "many/selection.json", "--target", "nccl-tuner", "-o", "tuner"]) == 0
    assert "nccl_tuner.conf: no row, for NCCL has one algorithm for alltoall" in capsys.readouterr().err


def test_a_generated_folder_finds_the_proposed_sketch(here, capsys):
    given = ["--hardware", "ring4", "--method", "ring", "--size", "64K", "-o", "ar.plan.json"]
    assert run(["plan", "collective", "allreduce", *given]) == 0
    assert run(["generate", "ar.plan.json", "-o", "away"]) == 0
    assert (here / "away/ar.sketch.json").read_bytes() == (here / "ar.sketch.json").read_bytes()
    assert run(["check", "--fresh", "away"]) == 0
    (here / "away/ar.sketch.json").write_text((here / "ar.sketch.json").read_text() + " ")
    assert run(["check", "away"]) == 1
    assert "ar.sketch.json: changed since it was generated" in capsys.readouterr().out


def test_the_report_shows_ranges_times_and_what_was_simulated(here, rings, capsys):
    selection = store.load("many/selection.json", Selection)
    assert run(["report", "many/selection.json", "-o", "page.html"]) == 0
    page = (here / "page.html").read_text()
    for entry in selection.entries:
        assert f">{format_bytes(entry.min_bytes)}".replace(" ", "\u00a0") in page
        chosen = entry.simulated_us[f"{entry.protocol} x {entry.instances}"]
        assert f"chosen: {chosen[0]:,.2f} to {chosen[1]:,.2f}" in page
    for words in ("lower bound", "0-ring, planned", "simulated, as a program", "64 KiB"):
        assert words in page
    raw = json.loads((here / "many" / "selection.json").read_text())
    raw["ranks"] = 5
    (here / "many" / "selection.json").write_text(json.dumps(raw))
    assert run(["report", "many/selection.json", "-o", "other.html"]) == 1
    assert not (here / "other.html").exists()
    assert run(["report", "many/small.sketch.json", "-o", "other.html"]) == 2


def test_the_same_inputs_give_the_same_bytes(here, rings):
    first = {path.name: path.read_bytes() for path in rings.iterdir()}
    assert swept("--method", "ring", "--sketch", "mesh") == 0
    assert {path.name: path.read_bytes() for path in rings.iterdir()} == first


@pytest.mark.parametrize(
    ("field", "value", "finding"),
    [
        ("predicted_us", [500.0, 600.0], "the plan takes"),
        ("bound_us", [0.0, 0.0], "entries[0]: bound"),
        ("simulated_us", {"LL x 64": [1.0, 1.0]}, "entries[0]: no simulated time"),
        ("plan", {"file": "other.plan.json", "digest": "sha256:" + "0" * 64}, "other.plan.json"),
    ],
)
def test_a_forged_table_is_rejected(here, rings, field, value, finding, capsys):
    raw = json.loads((here / "many" / "selection.json").read_text())
    raw["entries"][0][field] = value
    (here / "many" / "selection.json").write_text(json.dumps(raw))
    capsys.readouterr()
    assert run(["check", "--fresh", "many/selection.json"]) == 1
    assert finding in capsys.readouterr().out


@pytest.mark.parametrize(
    ("field", "value", "finding"),
    [
        ("instances", 0, "instances"),
        ("instances", 65, "instances"),
        ("predicted_us", [500.0], "predicted_us"),
        ("bound_us", [0.0, 0.0, 0.0], "bound_us"),
        ("bound_us", [0.0, 1e9], "$.entries[0].bound_us[1]: found 1e+09, expected at most"),
        ("method", "all-pairs", "entries[0]: method all-pairs, but 0-ring.plan.json was made by ring"),
    ],
)
def test_a_table_that_contradicts_itself_is_neither_accepted_nor_generated(here, field, value, finding, capsys):
    assert swept("--method", "ring", "--sketch", "mesh", "--protocol", "LL", "--instances", "1") == 0
    raw = json.loads((here / "many" / "selection.json").read_text())
    raw["entries"][0][field] = value
    (here / "many" / "selection.json").write_text(json.dumps(raw))
    capsys.readouterr()
    for command in (["check", "many/selection.json"], ["generate", "many/selection.json", "-o", "out"]):
        assert run(command) in (1, 2)
        printed = capsys.readouterr()
        assert finding in printed.out + printed.err
    assert not (here / "out").exists()


def test_a_forged_simulation_is_rejected(here, rings, capsys):
    raw = json.loads((here / "many" / "selection.json").read_text())
    entry = raw["entries"][-1]
    entry["simulated_us"][f"{entry['protocol']} x {entry['instances']}"][1] *= 0.9
    (here / "many" / "selection.json").write_text(json.dumps(raw))
    assert run(["check", "many/selection.json"]) == 0
    assert run(["check", "--fresh", "many/selection.json"]) == 1
    assert f"entries[{len(raw['entries']) - 1}]: simulated" in capsys.readouterr().out


def test_a_changed_plan_is_rejected(here, rings, capsys):
    name = json.loads((rings / "selection.json").read_text())["entries"][0]["plan"]["file"]
    raw = json.loads((here / "many" / name).read_text())
    raw["provenance"]["method"] = "luck"
    (here / "many" / name).write_text(json.dumps(raw))
    assert run(["check", "many/selection.json"]) == 1
    assert "found another plan than the one that selection.json was made with" in capsys.readouterr().out
    assert run(["generate", "many/selection.json", "-o", "out"]) == 2
    assert not (here / "out").exists()


def test_other_files_of_a_folder_are_left_alone(here, capsys):
    (here / "many").mkdir()
    (here / "many" / "thesis.txt").write_text("years of work")
    (here / "many" / "selection.json").write_text('["years of work"]')
    ring = ["--method", "ring", "--sketch", "mesh"]
    assert swept(*ring) == 2
    assert "selection.json" in capsys.readouterr().err
    assert (here / "many" / "selection.json").read_text() == '["years of work"]'
    (here / "many" / "selection.json").unlink()
    assert swept(*ring) == 0
    assert (here / "many" / "thesis.txt").read_text() == "years of work"
    assert swept("--size", "1K") == 2
    assert "--sizes: found --size too" in capsys.readouterr().err


def test_a_proposed_sketch_lies_beside_its_plan(here, capsys):
    assert run(["plan", "collective", "allgather", "--hardware", "ring4", "--size", "16K", "-o", "ag.plan.json"]) == 0
    assert {path.name for path in here.iterdir()} == {"ag.plan.json", "ag.sketch.json"}
    out = capsys.readouterr().out
    assert "chosen" in out
    assert "wrote ag.plan.json and ag.sketch.json" in out
    assert run(["check", "--fresh", "ag.plan.json"]) == 0


@pytest.mark.parametrize("more", [["--size", "1M", "-o", "mine.plan.json"], ["--sizes", "1K,2K", "-o", "."]])
def test_a_proposed_sketch_never_replaces_anything(here, more, capsys):
    given = ["plan", "collective", "allgather", "--hardware", "ring4", "--method", "ring", *more]
    assert run(given) == 0
    assert run(given) == 0, "the same proposal again"
    (sketch,) = here.glob("*sketch.json")
    edited = sketch.read_text().replace('"name": "', '"name": "my ')
    sketch.write_text(edited)
    others = {path: path.read_bytes() for path in here.iterdir()}
    assert run(given) == 2
    assert f"error: {sketch.name}: found a sketch that differs from the one proposed here" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in here.iterdir()} == others
    assert run([*given, "--sketch", sketch.name]) == 0
    assert sketch.read_text() == edited


def test_inputs_are_not_replaced_by_the_proposed_sketch(here, capsys):
    pattern = {"kind": "pattern", "version": 1, "name": "p", "counts": [[0, 1, 0], [1, 0, 0], [0, 0, 0]]}
    (here / "x.sketch.json").write_text(json.dumps(pattern))
    given = ["--hardware", "line3", "--pattern", "x.sketch.json", "--size", "1K", "-o", "x.plan.json"]
    assert run(["plan", "collective", "alltoallv", *given]) == 2
    assert "x.sketch.json: found an input of this command" in capsys.readouterr().err
    assert json.loads((here / "x.sketch.json").read_text()) == pattern


def test_a_plan_that_cannot_be_written_leaves_no_sketch(here, capsys):
    (here / "folder").mkdir()
    given = ["--hardware", "ring4", "--method", "ring", "--size", "1K", "-o", "folder"]
    assert run(["plan", "collective", "allgather", *given]) == 2
    assert "found a folder" in capsys.readouterr().err
    assert [path.name for path in here.iterdir()] == ["folder"]


def test_a_sweep_in_the_switch(here, capsys):
    given = ["--hardware", "ndv5", "--sizes", "1K,64K", "--method", "nvls", "-o", "many"]
    assert run(["plan", "collective", "allreduce", *given]) == 0
    assert run(["check", "--fresh", "many/selection.json"]) == 0
    for target in ("mscclpp-json", "nccl-tuner"):
        assert run(["generate", "many/selection.json", "--target", target, "-o", target]) == 0
    assert "\nallreduce,0," in (here / "nccl-tuner" / "nccl_tuner.conf").read_text()
    capsys.readouterr()
    assert run(["generate", "many/selection.json", "--target", "msccl-xml", "-o", "other"]) == 2
    assert "no range fits into msccl-xml: " in capsys.readouterr().err
