"""File names that are not UTF-8: commands read and write them, JSON and SARIF stay valid, no plan records them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest

from tests.treadle.cli.test_check_sarif import WRONG
from treadle.cli.main import run

BYTE = os.fsdecode(b"\xff")
PLAN = ["plan", "collective", "allgather", "--method", "ring", "--size", "64KiB", "--hardware"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a plan of the shipped profile `ring4`, a program that is wrong and a document that is none."""
    monkeypatch.chdir(tmp_path)
    Path(f"wrong{BYTE}.xml").write_text(WRONG)
    Path(f"broken{BYTE}.json").write_text("{")
    assert run([*PLAN, "ring4", "-o", "c.json"]) == 0
    shutil.copy("c.json", f"c{BYTE}.json")
    return tmp_path


def test_check_names_them_in_json_and_sarif(folder, capsys):
    names = [f"wrong{BYTE}.xml", f"broken{BYTE}.json", f"c{BYTE}.json", f"absent{BYTE}"]
    capsys.readouterr()
    assert run(["check", *names, "--json", "--sarif", f"o{BYTE}.sarif"]) == 2
    out, err = capsys.readouterr()
    files = json.loads(out)["files"]
    assert [each["file"] for each in files] == ["wrong\\xff.xml", "broken\\xff.json", "c\\xff.json", "absent\\xff"]
    assert "error: rejected 1 of 4 files: wrong\\xff.xml" in err
    found = json.loads(Path(f"o{BYTE}.sarif").read_text())
    for text in (json.dumps(files, ensure_ascii=False), json.dumps(found, ensure_ascii=False)):
        text.encode()  # no half of a surrogate pair is left
    places = [each["locations"][0]["physicalLocation"]["artifactLocation"] for each in found["runs"][0]["results"]]
    assert {unquote_to_bytes(each["uri"]) for each in places} == {b"wrong\xff.xml", b"broken\xff.json", b"absent\xff"}


@pytest.mark.parametrize("arguments", [["diff"], ["report", "-o", "r.html"], ["check", "--fresh", "--hardware"]])
def test_errors_name_them(folder, capsys, arguments):
    capsys.readouterr()
    assert run([*arguments, f"absent{BYTE}", "c.json", "--json"]) == 2
    out, err = capsys.readouterr()
    json.dumps(json.loads(out), ensure_ascii=False).encode()
    assert err.splitlines()[-1].startswith("error: ")
    assert "internal" not in err


def test_no_plan_records_them(folder, capsys):
    shutil.copy("c.sketch.json", f"c{BYTE}.sketch.json")
    assert run([*PLAN, "ring4", "--sketch", f"c{BYTE}.sketch.json", "-o", "d.json"]) == 2
    said = "found a file name that is not UTF-8, which no plan can record; rename it"
    assert capsys.readouterr().err.splitlines()[-1] == f"error: c\\xff.sketch.json: {said}"
    assert run(["generate", f"c{BYTE}.json", "--target", "msccl-xml", "-o", "made"]) == 2
    assert capsys.readouterr().err == f"error: c\\xff.json: {said}\n"
    assert not Path("d.json").exists()
    assert not Path("made").exists()


@pytest.mark.slow
def test_a_report_shows_them_and_links_its_timelines(folder):
    assert run(["report", f"c{BYTE}.json", "-o", f"r{BYTE}.html"]) == 0
    page = Path(f"r{BYTE}.html").read_text()
    assert "<title>c\\xff</title>" in page
    assert '<a href="r%FF.perfetto.json" download>r\\xff.perfetto.json</a>' in page


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"LC_ALL": "C", "PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "ascii"}])
def test_an_ascii_terminal_shows_them(folder, settings):
    command = [sys.executable, "-m", "treadle", "check", f"wrong{BYTE}.xml", f"c{BYTE}.json", "--sarif", "é.sarif"]
    for more in ([], ["--json"]):
        done = subprocess.run(
            [*command, *more],
            env={**os.environ, "PYTHONCOERCECLOCALE": "0", **settings},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == rb"error: rejected 1 of 2 files: wrong\xff.xml"
        assert b"wrong\\xff.xml" in done.stdout.replace(b"\\\\", b"\\")
        assert json.loads(Path("é.sarif").read_text())["runs"][0]["results"]
