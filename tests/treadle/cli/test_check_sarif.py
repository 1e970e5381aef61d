"""`check --sarif`: what code hosts ask of SARIF 2.1.0, for findings of every kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from treadle.cli.main import run

WRONG = """<algo name="w" nchunksperloop="2" nchannels="1" ngpus="2" proto="Simple" coll="allgather" inplace="0" \
outofplace="1" minBytes="0" maxBytes="0">
  <gpu id="0" i_chunks="1" o_chunks="2" s_chunks="0">
    <tb id="0" send="1" recv="-1" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
  <gpu id="1" i_chunks="1" o_chunks="2" s_chunks="0">
    <tb id="0" send="-1" recv="0" chan="0">
      <step s="0" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
</algo>
"""


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    Path("my xml").mkdir()
    Path("my xml/wrong.xml").write_text(WRONG)
    Path("broken.json").write_text("{")
    arguments = ["check", "my xml/wrong.xml", "broken.json", "--runtime", "rccl", "--sarif", "out.sarif"]
    assert run(arguments) == 2
    document: dict[str, Any] = json.loads(Path("out.sarif").read_text())
    return document


def test_the_reason_of_the_exit_code_is_the_last_line(found, capsys):
    capsys.readouterr()
    assert run(["check", "broken.json", "--sarif", "again.sarif"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "wrote again.sarif"
    assert lines[-1].startswith("error: broken.json: ")


def test_the_document_has_what_the_standard_and_code_hosts_require(found):
    assert found["version"] == "2.1.0"
    (only,) = found["runs"]
    rules = only["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    for rule in rules:
        assert all(rule[words]["text"] for words in ("shortDescription", "fullDescription", "help"))
    prints = [result["partialFingerprints"]["treadle/v1"] for result in only["results"]]
    assert len(set(prints)) == len(prints)
    for result in only["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        assert result["message"]["text"]
        (location,) = result["locations"]
        place = location["physicalLocation"]
        assert place["artifactLocation"]["uriBaseId"] == "%SRCROOT%"
        assert place["artifactLocation"]["uri"] in ("my%20xml/wrong.xml", "broken.json")
        assert place["region"]["startLine"] >= 1
        assert place["region"]["startColumn"] >= 1


def test_findings_are_at_their_lines_and_columns(found):
    results = found["runs"][0]["results"]
    steps = [each for each in results if each["ruleId"] == "rejected"]
    regions = [each["locations"][0]["physicalLocation"]["region"] for each in steps]
    assert {"startLine": 9, "startColumn": 7} in regions  # the step that receives to the wrong place
    assert any(each["ruleId"].startswith("msccl/") for each in results)
    assert [each["ruleId"] for each in results][-1] == "unreadable"


def test_fingerprints_survive_lines_above(found):
    before = {each["partialFingerprints"]["treadle/v1"] for each in found["runs"][0]["results"]}
    Path("my xml/wrong.xml").write_text("<!-- a comment -->\n" + WRONG)
    run(["check", "my xml/wrong.xml", "broken.json", "--runtime", "rccl", "--sarif", "out.sarif"])
    after = json.loads(Path("out.sarif").read_text())["runs"][0]["results"]
    assert {each["partialFingerprints"]["treadle/v1"] for each in after} == before


def test_good_files_make_an_empty_list_and_no_input_is_replaced(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["sketch", "new", "--hardware", "ring4", "-o", "s.json"]) == 0
    assert run(["check", "s.json", "--sarif", "out.sarif"]) == 0
    assert json.loads(Path("out.sarif").read_text())["runs"][0]["results"] == []
    assert run(["check", "s.json", "--sarif", "s.json"]) == 2
    assert "found an input of this command" in capsys.readouterr().err
