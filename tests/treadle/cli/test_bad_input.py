"""Every command that reads a file, given every kind of bad file: exit code 2 and one line that names the file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.planner.samples import DOCUMENTS, HARDWARE, SKETCH, TRACE
from treadle.cli.main import run
from treadle.planner.documents.store import dumps

COLLECTIVE = ["plan", "collective", "allgather", "--size", "1KiB", "-o", "OUT"]
COMMANDS = {
    "trace show": ["trace", "show", "BAD"],
    "trace import": ["trace", "import", "BAD", "-o", "OUT"],
    "profile show": ["profile", "show", "BAD"],
    "profile import": ["profile", "import", "BAD", "-o", "OUT"],
    "plan memory --trace": ["plan", "memory", "--trace", "BAD", "--budget", "0.5x", "-o", "OUT"],
    "plan memory --problem": ["plan", "memory", "--problem", "BAD", "--budget", "0.5x", "-o", "OUT"],
    "plan collective --hardware": [*COLLECTIVE, "--hardware", "BAD", "--sketch", "ring"],
    "plan collective --sketch": [*COLLECTIVE, "--hardware", "ring4", "--sketch", "BAD"],
    "plan ranks --costs": ["plan", "ranks", "--costs", "BAD", "-o", "OUT"],
    "plan ranks --problem": ["plan", "ranks", "--problem", "BAD", "-o", "OUT"],
    "sketch new": ["sketch", "new", "--hardware", "BAD", "-o", "OUT"],
    "sketch show": ["sketch", "show", "BAD", "--hardware", "ring4"],
    "plan job": ["plan", "job", "BAD", "-o", "OUT"],
    "generate": ["generate", "BAD", "--target", "torch", "-o", "OUT"],
    "check": ["check", "BAD"],
    "simulate": ["simulate", "BAD"],
    "report": ["report", "BAD", "-o", "OUT"],
    "run": ["run", "BAD", "--backend", "cpu"],
}


def text(content: str | bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content if isinstance(content, bytes) else content.encode()) and None


WHOLE = dumps(TRACE)
CYCLE = WHOLE.replace('"after": ["mm"]', '"after": ["bw"]')
assert CYCLE != WHOLE
BAD: dict[str, Callable[[Path], None]] = {
    "missing": lambda path: None,
    "empty": text(""),
    "blank": text("\n\n"),
    "folder": lambda path: path.mkdir(),
    "pipe": lambda path: os.mkfifo(path),
    "binary": text(bytes(range(256))),
    "zero bytes": text(b"\0" * 4096),
    "gzip magic": text(b"\x1f\x8b\x08\x00\x00"),
    "truncated": text(WHOLE[: len(WHOLE) // 2]),
    "words": text("just some words\n"),
    "number": text("7"),
    "array": text("[]"),
    "object": text("{}"),
    "deep": text("[" * 5000),
    "deep objects": text('{"a":' * 1500 + "1" + "}" * 1500),
    "unknown kind": text('{"kind": "song", "version": 1}'),
    "newer version": text(json.dumps({**json.loads(dumps(HARDWARE)), "version": 99})),
    "missing fields": text('{"kind": "trace", "version": 1}'),
    "cycle": text(CYCLE),
    "negative": text(dumps(SKETCH).replace('"num_nodes": 2', '"num_nodes": -2')),
    "open xml": text("<system><cpu>"),
    "other xml": text("<html><body/></html>"),
    "bomb xml": text('<!DOCTYPE a [<!ENTITY x "xxxxxxxxxx"><!ENTITY y "&x;&x;&x;&x;">]><system>&y;</system>'),
}


@pytest.mark.parametrize("bad", sorted(BAD))
@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_bad_files_end_in_2_and_one_line(
    command: str, bad: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    BAD[bad](Path("BAD"))
    code = run(COMMANDS[command])
    err = capsys.readouterr().err
    assert code == 2, err
    lines = err.splitlines()
    assert lines[-1].startswith("error: ")
    assert "BAD" in lines[-1]
    assert "Traceback" not in err
    assert not Path("OUT").exists()


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_documents_of_another_kind_are_refused_by_name(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("BAD").write_text(dumps(DOCUMENTS[name]))
    readers = {"trace": "trace show", "hardware": "profile show", "sketch": "plan collective --sketch"}
    for kind, command in readers.items():
        shown = command == "profile show" and name in (
            "compression-costs",
            "cost-matrix",
            "index-model",
            "server-parts",
            "sparse-costs",
        )
        if kind != name and not shown:
            assert run(COMMANDS[command]) == 2
            assert f"expected '{kind}'" in capsys.readouterr().err
