"""No command writes over a file that it reads, nor over one that treadle did not write."""

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
    assert run(["generate", "artefact.json", "-o", "."]) == 2
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


WRITING = {
    **{name: (document, words, "plan") for name, (document, words) in COMMANDS.items() if name.startswith("plan ")},
    "plan swap": (TRACE, ["plan", "swap", "--trace", "IN", "--hardware", "dgx1", "-o", "OUT"], "plan"),
    "plan fusion": (TRACE, ["plan", "fusion", "p.py", "--hardware", "dgx1", "-o", "OUT"], "plan"),
    "report": (MEMORY_PLAN, ["report", "IN", "-o", "OUT"], "page"),
    "report as SVG": (MEMORY_PLAN, ["report", "IN", "-o", "OUT.svg"], "picture"),
    "simulate": (COLLECTIVE_PLAN, ["simulate", "IN", "--perfetto", "OUT"], "timeline"),
    "simulate --memory-snapshot": (MEMORY_PLAN, ["simulate", "IN", "--memory-snapshot", "OUT"], "memory snapshot"),
    "trace import": (TRACE, ["trace", "import", "IN", "-o", "OUT"], "trace"),
    "trace capture": (TRACE, ["trace", "capture", "m:f", "-o", "OUT"], "trace"),
    "profile import": (HARDWARE, ["profile", "import", "IN", "-o", "OUT"], "hardware"),
    "profile measure": (HARDWARE, ["profile", "measure", "-o", "OUT"], "hardware"),
    "profile show": (HARDWARE, ["profile", "show", "IN", "--svg", "OUT"], "picture"),
    "sketch new": (HARDWARE, ["sketch", "new", "--hardware", "IN", "-o", "OUT"], "sketch"),
    "sketch show": (SKETCH, ["sketch", "show", "IN", "--hardware", "ring4", "-o", "OUT"], "picture"),
    "check --sarif": (HARDWARE, ["check", "IN", "--sarif", "OUT"], "SARIF file"),
}


@pytest.mark.parametrize("name", sorted(WRITING))
def test_a_file_that_treadle_did_not_write_is_refused_before_anything_else(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    document, words, kind = WRITING[name]
    Path("in").write_text(dumps(document))
    output = next(word for word in words if word.startswith("OUT"))
    for text in ("years of work", '{"kind": "thesis"}', "<svg>mine</svg>", '{"traceEvents": []}'):
        Path(output).write_text(text)
        assert run(["in" if word == "IN" else word for word in words]) == 2
        name = {"hardware": "profile"}.get(kind, kind)
        message = f"found a file that is no {name} of treadle and would be replaced; choose another name, or remove it"
        assert capsys.readouterr().err == f"error: {output}: {message}\n"
        assert Path(output).read_text() == text
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(("in", output))


AGAIN = [
    ["profile", "show", "ring4", "--svg", "OUT"],
    ["sketch", "show", "ring", "--hardware", "ring4", "-o", "OUT"],
    ["sketch", "new", "--hardware", "ring4", "-o", "OUT"],
    ["check", "in", "--sarif", "OUT"],
    ["simulate", "in", "--perfetto", "OUT"],
    ["simulate", "memory", "--memory-snapshot", "OUT"],
    ["report", "in", "-o", "OUT"],
    ["report", "in", "-o", "out.svg"],
]


@pytest.mark.parametrize("words", AGAIN, ids=lambda words: " ".join(words[:3]))
def test_what_treadle_wrote_is_replaced(words: list[str], plans: Path) -> None:
    arguments = ["out" if word == "OUT" else word for word in words]
    assert run(arguments) == 0
    output = plans / arguments[-1]
    first = output.read_bytes()
    assert run(arguments) == 0
    assert output.read_bytes() == first
    output.write_bytes(b"")
    assert run(arguments) == 0, "an empty file, as mktemp makes one"
    assert output.read_bytes() == first
    assert run([*arguments[:-1], "/dev/null"]) == 0 or words[0] == "report", "a page has its timeline beside it"


@pytest.fixture
def plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert run([*PLAN, "--size", "1KiB", "-o", "in"]) == 0
    store.save(PROBLEM, "problem.json")
    assert run(["plan", "memory", "--problem", "problem.json", "-o", "memory"]) == 0
    return tmp_path


def test_sketches_and_profiles_that_people_edited_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    topology = str(Path(__file__).parent.parent / "probe" / "samples" / "smi_new.txt")
    edit = "# measured twice\n"
    for words in (["sketch", "new", "--hardware", "ring4"], ["profile", "import", topology, "--costs-from", "ndv4"]):
        assert run([*words, "-o", "x.yaml"]) == 0
        edited = edit + Path("x.yaml").read_text()
        assert run([*words, "-o", "x.yaml"]) == 0
        Path("x.yaml").write_text(edited)
        assert run([*words, "-o", "x.yaml"]) == 2
        assert "x.yaml: found a " in capsys.readouterr().err
        assert Path("x.yaml").read_text() == edited
        Path("x.yaml").unlink()


def test_a_report_does_not_replace_a_timeline_of_others(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("r.perfetto.json").write_text('{"traceEvents": []}')
    assert run(["report", "in", "-o", "r.html"]) == 2
    assert "r.perfetto.json: found a file that is no timeline of treadle" in capsys.readouterr().err
    assert not Path("r.html").exists()


def test_a_plan_replaces_plans_of_any_form_and_no_other_document(
    plans: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("x.json", "x.yaml"):
        for _ in range(2):
            assert run([*PLAN, "--size", "1KiB", "-o", name]) == 0
    store.save(HARDWARE, "machine.json")
    before = Path("machine.json").read_text()
    capsys.readouterr()
    assert run([*PLAN, "--size", "1KiB", "-o", "machine.json"]) == 2
    assert "machine.json: found a file that is no plan of treadle" in capsys.readouterr().err
    assert Path("machine.json").read_text() == before
