"""`treadle profile sparsity`: tables, a document and pictures from index sets; wrong files end in one line."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.planner.samples import INDEX_SETS, SPARSITY, TRACE
from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.probe.draw_sparsity import sparsity_svg
from treadle.probe.index_sets import recorded_in, save_sets

WORKED = """
kind: index-sets
version: 1
name: worked
tensors:
- name: table
  form: coo
  unit: element
  units: 16
  width: 1
  sets:
  - [[0, 1, 2, 8], [0, 1, 3, 12], [0, 2, 3, 5], [1, 2, 3, 15]]
"""


def test_tables_show_densities_overlap_and_skew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sets.yaml").write_text(WORKED)
    assert run(["profile", "sparsity", str(tmp_path / "sets.yaml")]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("table")]
    assert lines[0] == ["table", "coo", "element", "16", "1", "4", "4", "4", "25%", "50%", "±", "0%"]
    assert lines[1] == ["table", "25%", "1x", "37.5%", "1.5x", "50%", "2x"]
    assert lines[2][3:5] == ["3", "2"]  # of four ranges


def test_sets_document_and_json_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets, out, page = tmp_path / "sets.npz", tmp_path / "sparsity.json", tmp_path / "sparsity.html"
    save_sets(recorded_in(INDEX_SETS), sets)
    assert run(["profile", "sparsity", str(sets), "-o", str(out), "--picture", str(page), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["schema"] == "treadle.profile-sparsity/1"
    assert printed["sparsity"] == json.loads(out.read_text())
    text = page.read_text()
    assert text.count("<svg") == 1
    assert "embedding.weight: 16 rows of 8 elements, coo gradient, 4 index sets" in text
    assert run(["profile", "sparsity", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == printed


def test_a_picture_is_the_same_bytes_each_time_and_has_all_panels(tmp_path: Path) -> None:
    store.save(SPARSITY, tmp_path / "sparsity.json")
    assert run(["profile", "sparsity", str(tmp_path / "sparsity.json"), "--picture", str(tmp_path / "a.svg")]) == 0
    svg = (tmp_path / "a.svg").read_text()
    ElementTree.fromstring(svg)
    assert svg == sparsity_svg(SPARSITY.tensors)
    for title in ("density of the sum", "fullest even range", "overlap of two", "where non-zero units lie"):
        assert title in svg


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("no.npz", None, "cannot read"),
        ("cut.npz", b"PK\x03\x04 and no more", "found a broken archive"),
        ("bytes.npz", b"\x93NUMPY", "not UTF-8"),
        ("trace.json", store.dumps(TRACE).encode(), "$.kind: found 'trace', expected 'sparsity' or 'index-sets'"),
        ("range.yaml", WORKED.replace("15]", "16]").encode(), "found 16, expected a unit below 16"),
        ("none.yaml", (WORKED.split("  - [[")[0].rstrip() + " []\n").encode(), "a list of steps"),
    ],
    ids=["absent", "cut short", "one array", "a trace", "out of range", "no steps"],
)
def test_a_wrong_file_ends_in_one_line(
    name: str, data: bytes | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    assert run(["profile", "sparsity", str(tmp_path / name), "-o", str(tmp_path / "out.json")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out.json").exists()


def test_a_wrong_count_in_a_document_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = store.dumps(SPARSITY).replace('"mean": 60', '"mean": 501')
    (tmp_path / "sparsity.json").write_text(text)
    assert run(["profile", "sparsity", str(tmp_path / "sparsity.json")]) == 2
    assert "fullest[0].mean: found 501, expected at most 500 units" in capsys.readouterr().err
