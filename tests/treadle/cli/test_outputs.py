"""No command writes over a file that it reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.planner.samples import COLLECTIVE_PLAN, HARDWARE, MEMORY_PLAN, PROBLEM, SKETCH, TRACE
from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.documents.store import dumps

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
    "simulate --memory-snapshot": (MEMORY_PLAN, ["simulate", "IN", "--memory-snapshot", "OUT"]),
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
    Path("in").write_text(text)
    Path("link").symlink_to("in")
    for output in ("in", "./in", str(tmp_path / "in"), "link"):
        assert run([{"IN": "in", "OUT": output}.get(word, word) for word in arguments]) == 2
        message = f"error: {output}: found an input of this command, expected another file to write\n"
        assert capsys.readouterr().err == message
        assert Path("in").read_text() == text


def test_the_model_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def step(): ...\n")
    assert run(["trace", "capture", "mine:step", "-o", "mine.py"]) == 2
    assert "found 'mine.py', expected a file that ends in .json" in capsys.readouterr().err
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
    assert store.digest(store.load_any("out/plan.json")) == store.digest(store.load_any("artefact.json"))


PLAN = ["plan", "collective", "allgather", "--hardware", "ring4", "--method", "ring"]


def test_a_sketch_that_the_tool_proposed_is_replaced_with_its_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*PLAN, "--size", "1KiB", "-o", "x.json"]) == 0
    first = Path("x.sketch.json").read_text()
    assert run([*PLAN, "--size", "64MiB", "-o", "x.json"]) == 0
    assert Path("x.sketch.json").read_text() != first
    mine = first.replace('"direct"', '"none"')
    Path("x.sketch.json").write_text(mine)
    assert run([*PLAN, "--size", "1KiB", "-o", "x.json"]) == 2
    assert Path("x.sketch.json").read_text() == mine
    assert "found a sketch that differs" in capsys.readouterr().err
    assert run([*PLAN[:-1], "best", "--size", "1KiB", "-o", "x.json"]) == 2
    assert capsys.readouterr().err.startswith("error: --method: found 'best'"), "options come before files"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["report", "p.json", "-o", "x.pdf"],
            "--output: found 'x.pdf', expected a file that ends in .html, .htm or .svg",
        ),
        (
            ["report", "p.json", "-o", "x.json"],
            "--output: found 'x.json', expected a file that ends in .html, .htm or .svg",
        ),
        (
            ["simulate", "p.json", "--perfetto", "x.svg"],
            "--perfetto: found 'x.svg', expected a file that ends in .json",
        ),
        (["profile", "show", "ring4", "--svg", "x.html"], "--svg: found 'x.html', expected a file that ends in .svg"),
        ([*PLAN, "-o", "typo/x.json"], "--output: found no folder 'typo' to write 'x.json' into"),
        (["generate", "p.json", "-o", "typo/out"], "--output: found no folder 'typo' to write 'out' into"),
    ],
)
def test_no_ending_of_another_format_and_no_folder_that_is_a_typing_error(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")
    assert list(tmp_path.iterdir()) == []


def test_yaml_holds_yaml(tmp_path: Path) -> None:
    assert run([*PLAN, "--size", "1KiB", "-o", str(tmp_path / "x.yaml")]) == 0
    assert (tmp_path / "x.yaml").read_text().startswith("certificate:\n")
    assert run(["check", str(tmp_path / "x.yaml")]) == 0
