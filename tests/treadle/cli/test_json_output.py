"""One JSON document for a command line with --json, also where it fails."""

from __future__ import annotations

import json
from typing import Any

import pytest

from treadle.cli.main import run

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
