"""No command writes over a file that it reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner import documents
from planner.documents import dumps
from tests.planner.samples import COLLECTIVE_PLAN, HARDWARE, MEMORY_PLAN, PROBLEM, SKETCH, TRACE
from treadle.cli.main import run

COMMANDS = {
    "plan memory --trace": (TRACE, ["plan", "memory", "--trace", "IN", "--budget", "1x", "-o", "OUT"]),
    "plan memory --problem": (PROBLEM, ["plan", "memory", "--problem", "IN", "-o", "OUT"]),
    "plan memory --hardware": (
        HARDWARE,
        ["plan", "memory", "--trace", "t", "--budget", "1x", "--hardware", "IN", "-o", "OUT"],
    ),
    "plan collective --hardware": (
        HARDWARE,
        ["plan", "collective", "allgather", "--hardware", "IN", "--sketch", "ring", "--size", "1K", "-o", "OUT"],
    ),
    "plan collective --sketch": (
        SKETCH,
        ["plan", "collective", "allgather", "--hardware", "ring4", "--sketch", "IN", "--size", "1K", "-o", "OUT"],
    ),
    "report": (MEMORY_PLAN, ["report", "IN", "-o", "OUT"]),
    "report --hardware": (HARDWARE, ["report", "p", "--hardware", "IN", "-o", "OUT"]),
    "simulate": (COLLECTIVE_PLAN, ["simulate", "IN", "--perfetto", "OUT"]),
    "trace import": (TRACE, ["trace", "import", "IN", "-o", "OUT"]),
    "trace capture --hardware": (HARDWARE, ["trace", "capture", "m:f", "--hardware", "IN", "-o", "OUT"]),
    "profile import": (HARDWARE, ["profile", "import", "IN", "-o", "OUT"]),
    "profile import --costs-from": (HARDWARE, ["profile", "import", "x", "--costs-from", "IN", "-o", "OUT"]),
    "profile show": (HARDWARE, ["profile", "show", "IN", "--svg", "OUT"]),
}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_an_output_that_is_an_input_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    document, arguments = COMMANDS[name]
    text = dumps(document)
    Path("in.json").write_text(text)
    Path("link.json").symlink_to("in.json")
    for output in ("in.json", "./in.json", str(tmp_path / "in.json"), "link.json"):
        assert run([{"IN": "in.json", "OUT": output}.get(word, word) for word in arguments]) == 2
        message = f"error: {output}: found an input of this command, expected another file to write\n"
        assert capsys.readouterr().err == message
        assert Path("in.json").read_text() == text


def test_the_model_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def step(): ...\n")
    assert run(["trace", "capture", "mine:step", "-o", "mine.py"]) == 2
    assert "found an input of this command" in capsys.readouterr().err
    assert Path("mine.py").read_text() == "def step(): ...\n"


def test_generated_files_do_not_replace_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["plan", "collective", "allgather", "--hardware", "ring4", "--sketch", "ring", "--size", "1K",
                "-o", "artefact.json"]) == 0  # fmt: skip
    before = Path("artefact.json").read_text()
    assert run(["generate", "artefact.json", "-o", ".", "--force"]) == 2
    assert "artefact.json: found an input of this command" in capsys.readouterr().err
    assert Path("artefact.json").read_text() == before
    assert run(["generate", "artefact.json", "-o", "out"]) == 0
    assert run(["generate", "out/plan.json", "-o", "out"]) == 0
    assert run(["check", "out"]) == 0
    assert documents.digest(documents.load_any("out/plan.json")) == documents.digest(
        documents.load_any("artefact.json")
    )
