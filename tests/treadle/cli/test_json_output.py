"""One JSON document for a command line with --json, also where it fails."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import GOLDEN
from tests.treadle.cli.test_main import leaves
from treadle.cli.main import cli, run

ERROR_KEYS = {"message", "code", "kind", "file", "option", "path", "findings"}


def failed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The error document of a command line that fails; its message is that of the last line on stderr."""
    code = run(arguments)
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["schema"] == "treadle.error/1"
    error: dict[str, Any] = document["error"]
    assert error.keys() == ERROR_KEYS
    assert error["code"] == code != 0
    assert err.splitlines()[-1] == f"error: {error['message']}"
    return error


def test_a_bad_file_is_named_with_its_place(tmp_path, capsys):
    file = tmp_path / "plan.json"
    file.write_text('{"kind": "plan", "version": 1}')
    error = failed(["simulate", str(file), "--json"], capsys)
    assert (error["kind"], error["file"]) == ("bad-input", str(file))
    assert error["path"].startswith("$.")


def test_usage_errors_name_the_option(capsys):
    error = failed(["simulate", "x.xml", "--size", "much", "--json"], capsys)
    assert (error["code"], error["file"], error["option"]) == (2, None, "--size")
    assert failed(["check", "--json"], capsys)["kind"] == "bad-input"
    assert failed(["chekc", "--json"], capsys)["code"] == 2
    assert failed(["plan", "job", "j.yaml", "-o", "", "--json"], capsys)["option"] == "--output"
    assert failed(["plan", "job", "j.yaml", "--json"], capsys)["option"] == "--output"
    assert failed(["check", "x.xml", "--frehs", "--json"], capsys)["option"] == "--frehs"
    assert failed(["profile", "--json"], capsys)["option"] == "--json"


def test_wrong_usage_of_every_command_is_a_document(capsys):
    for name, command in leaves(cli).items():
        error = failed([*name.split(), "--json", "--unknown-option"], capsys)
        assert (error["kind"], error["option"]) == ("bad-input", "--unknown-option")
        if any(each.required for each in command.params):
            lacking = failed([*name.split(), "--json"], capsys)
            assert (lacking["code"], lacking["file"]) == (2, None)
            assert lacking["option"] is None or lacking["option"].startswith("--")


def test_a_missing_backend_and_a_bug_are_documents_too(monkeypatch, capsys):
    def broken(*_: object) -> None:
        raise ModuleNotFoundError("no torch", name="torch")

    monkeypatch.setattr("treadle.cli.sketch._summary", broken)
    assert failed(["sketch", "list", "--json"], capsys)["kind"] == "missing-backend"
    monkeypatch.setattr("treadle.cli.sketch._summary", lambda sketch: 1 / 0)
    assert failed(["sketch", "list", "--json"], capsys)["kind"] == "internal"


def test_without_json_stdout_stays_empty(capsys):
    assert run(["simulate", "absent.json"]) == 2
    assert capsys.readouterr().out == ""
    assert run(["check", "--", "--json"]) == 2  # a file of that name
    assert capsys.readouterr().out == ""


def test_a_command_that_printed_its_document_prints_no_second_one(tmp_path, capsys):
    file = tmp_path / "wrong.xml"
    file.write_text("<algo>")
    assert run(["check", str(file), "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "treadle.check/1"
    assert document["files"][0]["verdict"] == "unreadable"


ROOT = Path(__file__).parents[3]
ROWS = re.findall(
    r"^\| `treadle\.([a-z-]+)/\d` \| [^|]+ \| ([^|]+) \| ([^|]*)\|$",
    (ROOT / "docs/json-output.md").read_text(),
    re.MULTILINE,
)
KEYS = {name: (set(re.findall(r"`(\w+)`", always)), set(re.findall(r"`(\w+)`", rest))) for name, always, rest in ROWS}
COMMANDS = {
    "examples": "examples -o copied",
    "trace": "trace capture examples.models.unet:tiny --hardware cpu-2x2 -o trace.json",
    "plan-aggregation": "plan aggregation --problem aggregation-problem.yaml -o g.json",
    "plan-checkpoint": "plan checkpoint --problem checkpoint-problem.yaml -o h.json",
    "plan-memory": "plan memory --problem memory-problem.yaml --gap 0 --budget 445 -o m.json",
    "plan-memory-budgets": "plan memory --problem memory-problem.yaml --gap 0 --sweep 445B..600B:2 -o points",
    "plan-swap": "plan swap --problem swap-problem.yaml --method exact --workers 1 -o s.json",
    "plan-compression": "plan compression --problem compression-problem.yaml --method cupcake -o e.json",
    "plan-ranks": "plan ranks --problem ranks-problem.yaml -o k.json",
    "plan-index": "plan index --problem index-problem.yaml -o i.json",
    "plan-server": "plan server --problem server-problem.yaml -o v.json",
    "plan-sparse": "plan sparse --problem sparse-problem.yaml -o z.json",
    "plan-tiling": "plan tiling --problem tiling-layer.yaml -o t.json",
    "plan-collective": "plan collective allgather --hardware ring4 --size 64KiB --method ring -o c.json",
    "plan-fusion": "plan fusion examples.fusion.sgd:program --hardware switch4 --bind N=1M -o f.json",
    "plan-collective-sizes": "plan collective allgather --hardware ring4 --sizes 64KiB..128KiB:2 --method ring -o many",
    "plan-fusion-sizes": "plan fusion examples.fusion.sgd:program --hardware switch4 --sweep N=1K..4K:2 -o sizes",
    "plan-fusion-found": "plan fusion --trace trace.json --hardware switch4 -o found",
    "generate": "generate c.json --target msccl-xml -o x",
    "run-collective": "run x",
    "check": "check c.json x m.json --fresh",
    "diff": "diff c.json c.json",
    "simulate-plan": "simulate m.json",
    "simulate-xml": "simulate x/allgather.xml --hardware ring4 --size 1MiB",
    "report": "report c.json -o r.html",
    "trace-show": "trace show step.json",
    "profile-list": "profile list",
    "profile-show": "profile show ring4",
    "sketch-list": "sketch list",
    "sketch-new": "sketch new --hardware ring4 -o ring4.yaml",
    "sketch-show": "sketch show ring4.yaml --hardware ring4",
    "error": "simulate absent.json",
}


def test_the_page_lists_every_schema_of_the_code():
    text = "".join(path.read_text() for path in sorted((ROOT / "treadle").rglob("*.py")))
    assert set(re.findall(r'print_(?:json|run)\(\s*"([a-z-]+)"', text)) == KEYS.keys()


@pytest.mark.slow
def test_commands_print_the_keys_of_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in (
        "aggregation-problem.yaml",
        "checkpoint-problem.yaml",
        "memory-problem.yaml",
        "swap-problem.yaml",
        "compression-problem.yaml",
        "index-problem.yaml",
        "server-problem.yaml",
        "sparse-problem.yaml",
        "ranks-problem.yaml",
        "tiling-layer.yaml",
        "step.json",
    ):
        shutil.copy(GOLDEN / "inputs" / name, tmp_path)
    for name, line in COMMANDS.items():
        assert run([*line.split(), "--json"]) == (2 if name == "error" else 0)
        document = json.loads(capsys.readouterr().out)
        always, sometimes = KEYS[name]
        assert document.pop("schema") == f"treadle.{name}/1"
        assert always <= document.keys() <= always | sometimes, name
