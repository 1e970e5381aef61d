"""`treadle check FILE.xml` for other people's files: verdicts, runtimes, FIFO depth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.codegen.collective.msccl.test_rules import GOOD
from tests.codegen.collective.test_check import ring_program, swap_pair
from treadle.cli.main import run
from treadle.codegen.collective.msccl import xml


def test_a_good_file_names_the_runtimes_that_take_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "swap.xml").write_text(GOOD)
    assert run(["check", "swap.xml"]) == 0
    assert capsys.readouterr().out == (
        "swap.xml: accepted (allgather of 2 ranks, 7 steps, out of place; taken by msccl, rccl, executor)\n"
    )


def test_a_right_file_that_a_runtime_refuses(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "swap.xml").write_text(GOOD.replace(' minBytes="64"', "").replace(' maxBytes="4096"', ""))
    assert run(["check", "swap.xml"]) == 0
    out = capsys.readouterr().out
    assert "taken by msccl; not by rccl (missing-attribute); not by executor (missing-attribute)" in out
    assert run(["check", "swap.xml", "--runtime", "rccl"]) == 1
    out = capsys.readouterr().out
    assert "rejected: 1 finding\n" in out
    assert "rccl refuses it: every attribute that it reads must be there (line 2: <algo> has no minBytes; " in out
    assert "silently" not in out
    assert run(["check", "swap.xml", "--runtime", "msccl"]) == 0


def test_conditions_are_told_for_a_file_that_is_taken(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "swap.xml").write_text(GOOD)
    assert run(["check", "swap.xml", "--runtime", "rccl", "--runtime", "msccl"]) == 0
    out = capsys.readouterr().out
    assert "  rccl runs its own algorithm, silently, when:\n" in out
    assert "runs from 64 bytes to 4096) [byte-count]" in out
    assert "  msccl ignores:\n" in out


def test_json_has_rules_places_and_sources(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "swap.xml").write_text('<?xml version="1.0"?>\n' + GOOD)
    assert run(["check", "swap.xml", "--runtime", "executor", "--json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)["files"]
    first = row["runtimes"]["executor"][0]
    assert row["verdict"] == "rejected"
    assert (first["rule"], first["effect"], first["places"]) == ("xml-declaration", "refuses", 1)
    assert first["spots"][0]["line"] == 1
    assert first["source"]


def test_fifo_depth(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "exchange.xml").write_text(xml.emit(swap_pair("sssrrr", "sssrrr")))
    assert run(["check", "exchange.xml"]) == 1
    assert "deadlock with 2 message slots per connection" in capsys.readouterr().out
    assert run(["check", "exchange.xml", "--fifo-depth", "3"]) == 0


def test_runtimes_are_for_xml(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "hw.yaml").write_text("kind: hardware\n")
    assert run(["check", "hw.yaml", "--runtime", "rccl"]) == 2
    assert "found no MSCCL XML, expected it for --runtime" in capsys.readouterr().err


def test_a_wrong_file_is_rejected_by_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = xml.emit(ring_program(3)).replace('type="rrc"', 'type="r"', 1)
    (here / "ring.xml").write_text(text)
    assert run(["check", "ring.xml"]) == 1
    assert "expected the sum of input chunk" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x7fELF\x00", "file.xml: found broken XML (Start tag expected"),
        (b"\xff\xfe<", "file.xml: found a byte at 0 that is not UTF-8, expected a text file"),
        (b"", "file.xml: found broken XML (Document is empty"),
    ],
)
def test_what_is_named_xml_and_is_none_is_broken_xml(
    content: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file.xml").write_bytes(content)
    assert run(["check", "file.xml"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")
