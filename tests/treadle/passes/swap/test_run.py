"""`treadle generate` and `treadle run` with a swap plan, from the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from tests.treadle.runtime.swap.steps import plan_of, trace_of
from treadle.cli.main import run
from treadle.codegen.emit import text_digest
from treadle.planner.documents import store
from treadle.runtime.swap import compare

NAME = "tiny"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.setattr(compare, "EMULATED", 0.05)
    trace = msgspec.structs.replace(trace_of(NAME, "adam"), entry="tests.treadle.runtime.swap.steps:tiny")
    plan = plan_of(NAME, "adam")
    inputs = {"trace": msgspec.structs.replace(plan.inputs["trace"], digest=store.digest(trace))}
    store.save(trace, tmp_path / "step.trace.json")
    store.save(msgspec.structs.replace(plan, inputs=inputs), tmp_path / "tiny.plan.json")
    assert run(["generate", str(tmp_path / "tiny.plan.json"), "-o", str(tmp_path / "made")]) == 0
    assert "wrote plan.json, step.py to" in capsys.readouterr().out
    return tmp_path / "made"


def test_bits_are_compared_and_time_is_set_against_the_prediction(folder, capsys):
    assert run(["run", str(folder), "--steps", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bit_equal"]
    assert found["findings"] == []
    assert found["steps"] == len(found["losses"]["swapped"]) == 2
    assert found["losses"]["swapped"] == found["losses"]["unconstrained"]
    decisions = plan_of(NAME, "adam").decisions
    assert found["iteration_ns"]["planned"] == decisions.time_ns
    assert found["iteration_ns"]["measured"] >= decisions.problem.ideal_ns, "operators take at least their time"
    assert found["operators_ns"]["measured"] >= decisions.problem.ideal_ns
    assert found["peak_bytes"]["arena"] >= decisions.peak_bytes
    assert found["peak_bytes"]["swapped"] == found["peak_bytes"]["arena"] + found["peak_bytes"]["outside"]
    assert run(["run", str(folder), "--steps", "1"]) == 0
    text = capsys.readouterr().out
    assert "1 iteration without a limit on memory, and as many under the plan; values equal to the last bit" in text
    assert "us from the times that the operators took" in text


def test_a_step_that_computes_something_else_is_found_out(folder, capsys):
    """Both runs make the calls of one text, so what is broken is a place: two results of one operator share it."""
    path = folder / "step.py"
    text = path.read_text()
    path.write_text(text + "\n")
    assert run(["run", str(folder)]) == 2
    assert "found a text other than the one that was generated" in capsys.readouterr().err
    makes = re.search(r'"(\w+_out0)": (\d+), "(\w+_out1)": (\d+)', text)
    wrong = text.replace(makes[0], f'"{makes[1]}": {makes[2]}, "{makes[3]}": {makes[2]}')
    manifest = json.loads((folder / "artefact.json").read_text())
    manifest["files"]["step.py"] = text_digest(wrong)
    (folder / "artefact.json").write_text(json.dumps(manifest))
    path.write_text(wrong)
    assert run(["run", str(folder)]) == 1
    error = capsys.readouterr().err
    assert "the run broke 1 promise" in error
    assert "differs from the unconstrained run in step 1, expected equal bits" in error


def test_time_out_and_wrong_options(folder, capsys):
    for options, code, message in (
        (["--timeout", "0.000001"], 1, "tiny: not done after 1e-06 s"),
        (["--world", "2"], 2, "a swap plan runs in one process"),
        (["--backend", "fibers"], 2, "found 'fibers', expected cpu or cuda"),
    ):
        assert run(["run", str(folder), *options]) == code
        assert message in capsys.readouterr().err
