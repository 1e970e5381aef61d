"""`treadle trace` from the command line: files written, tables printed, and one line for every mistake."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from treadle.cli.main import run
from treadle.cli.trace import sparkline
from treadle.planner.documents import store
from treadle.planner.documents.trace import Trace

MODEL = """
import torch
from torch import nn


def step(batch=4):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    return model, (torch.randn(batch, 8), torch.randn(batch, 2)), lambda m, x, y: (m(x) - y).square().mean()


class Moves(nn.Linear):
    def forward(self, x):
        return super().forward(x).transpose(1, 2).log_softmax(1).transpose(1, 2).reshape(12, 5)


def moves():
    return Moves(8, 5), (torch.randn(2, 6, 8),)


def needs(width):
    return None


def broken():
    raise RuntimeError("no weights\\nfound")


def one():
    return nn.Linear(2, 2)


def text():
    return "model", ()


def unequal():
    return nn.Linear(2, 2), ({3},)


not_callable = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the module `trace_cli_model`, as the current one."""
    (tmp_path / "trace_cli_model.py").write_text(MODEL)
    (tmp_path / "trace_cli_broken.py").write_text("import trace_cli_absent\n")
    (tmp_path / "trace_cli_syntax.py").write_text("def\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_capture_and_show(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "capture", "trace_cli_model:step", "--hardware", "ndv2", "-o", "t.json"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("wrote t.json: ")
    trace = store.load("t.json", Trace)
    assert (trace.entry, trace.mode) == ("trace_cli_model:step", "train")
    assert (trace.costs.model, trace.costs.device) == ("roofline", "ndv2")
    assert all(op.time_ns is not None for op in trace.ops)

    assert run(["trace", "show", "t.json", "--top", "3"]) == 0
    shown = capsys.readouterr().out
    for words in ("178", "aten.addmm.default", "Operators by time", "Tensors by bytes", "Memory peaks at", "ndv2"):
        assert words in shown

    assert run(["trace", "show", "t.json", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["trace"]["parameters"] == 8 * 16 + 16 + 16 * 2 + 2
    assert summary["trace"]["gradients"] == 4
    assert summary["peak"]["bytes"] == max(summary["peak"]["curve"])
    times = [row["time_ns"] for row in summary["operators"]]
    assert times == sorted(times, reverse=True)
    sizes = [row["bytes"] for row in summary["tensors"]]
    assert sizes == sorted(sizes, reverse=True)


def test_capture_without_times_and_for_inference(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "capture", "trace_cli_model:step", "--infer", "-o", "t.json", "--json"]) == 0
    overview = json.loads(capsys.readouterr().out)
    assert (overview["mode"], overview["costs"], overview["time_ns"]) == ("infer", "absent", None)
    assert list(overview["ops"]) == ["forward"]
    assert overview["flops"] == 2 * 4 * 8 * 16 + 2 * 4 * 16 * 2
    assert run(["trace", "show", "t.json"]) == 0


def test_capture_with_measured_times(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured once; the second capture takes what was measured, --fresh-costs does not."""
    monkeypatch.setattr("treadle.capture.costs.measuring.ENOUGH_SECONDS", 0.0)
    capture = ["trace", "capture", "trace_cli_model:step", "--measure", "-o"]
    assert run([*capture, "a.json"]) == 0
    trace = store.load("a.json", Trace)
    assert trace.costs.model == "measured"
    assert all(call.time_ns for op in trace.ops for call in (op, *op.implementations))
    assert run([*capture, "b.json"]) == 0
    assert Path("a.json").read_bytes() == Path("b.json").read_bytes()
    (kept,) = (folder / "cache" / "treadle" / "costs").iterdir()
    before = kept.read_text()
    assert run([*capture, "c.json", "--fresh-costs"]) == 0
    assert kept.read_text() != before
    kept.write_text("{")
    assert run([*capture, "d.json"]) == 0
    logged = [record.getMessage() for record in caplog.records if record.name == "treadle.costs"]
    assert [line.partition(":")[0] for line in logged] == [f"measured costs in {kept} are not used"]


def test_a_plan_measures_here_what_has_no_times(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("treadle.capture.costs.measuring.ENOUGH_SECONDS", 0.0)
    assert run(["trace", "capture", "trace_cli_model:step", "-o", "s.trace.json"]) == 0
    Path("plans").mkdir()
    plan = ["plan", "memory", "--trace", "s.trace.json"]
    assert run([*plan, "--budget", "1x", "-o", "plans/p.json"]) == 0
    output = capsys.readouterr()
    assert "the trace has no times: measured them here" in output.err
    assert output.out.endswith("wrote plans/p.json, and plans/s.measured.trace.json, the trace with its times\n")
    assert store.load("plans/s.measured.trace.json", Trace).costs.model == "measured"
    assert run(["check", "plans/p.json", "--fresh"]) == 0
    capsys.readouterr()
    assert run([*plan, "--budget", "1x", "-o", "plans/p.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measured_trace"] == "plans/s.measured.trace.json"
    assert run([*plan, "--sweep", "1x..1.2x:2", "-o", "plans/sweep"]) == 0
    assert "wrote plans/s.measured.trace.json, the trace with its times" in capsys.readouterr().out
    assert not Path("s.measured.trace.json").exists()


def test_fresh_costs_belong_to_measuring(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "capture", "trace_cli_model:step", "--fresh-costs", "-o", "t.json"]) == 2
    assert capsys.readouterr().err == "error: --fresh-costs: found no --measure, which it belongs to\n"


def test_a_training_step_lists_other_implementations(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "capture", "trace_cli_model:step", "--hardware", "ndv2", "-o", "t.json"]) == 0
    trace = store.load("t.json", Trace)
    others = [other for op in trace.ops for other in op.implementations]
    optional = [op for op in trace.ops if op.intermediate_of]
    assert {other.family for other in others} >= {"inplace", "int", "grad-inplace"}
    assert all(other.time_ns is not None and other.workspace_bytes is not None for other in others)
    assert f" ops, {len(others)} other implementations, " in capsys.readouterr().err
    assert run(["trace", "show", "t.json", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["trace"]
    assert (shown["implementations"], shown["optional_ops"]) == (len(others), len(optional))
    assert sum(shown["ops"].values()) == len(trace.ops) - len(optional)
    assert shown["time_ns"] == sum(op.time_ns for op in trace.ops if op not in optional)
    assert run(["trace", "capture", "trace_cli_model:step", "--infer", "-o", "t.json"]) == 0
    inference = store.load("t.json", Trace)
    assert {other.family for op in inference.ops for other in op.implementations} <= {"inplace"}


def test_two_captures_are_the_same_bytes(folder: Path) -> None:
    for name in ("a.json", "b.json"):
        assert run(["trace", "capture", "trace_cli_model:step", "-o", name]) == 0
    assert Path("a.json").read_bytes() == Path("b.json").read_bytes()


MISTAKES = {
    "trace_cli_model": "found no MODULE:FUNCTION",
    "trace_cli_nowhere:step": "found no module 'trace_cli_nowhere'",
    "trace_cli_nowhere.inner:step": "found no module 'trace_cli_nowhere'",
    "trace_cli_broken:step": "needs the missing module 'trace_cli_absent'",
    "trace_cli_syntax:step": "importing trace_cli_syntax raised SyntaxError",
    "./trace_cli_model.py:step": "found a file, expected a module; try trace_cli_model:step",
    "trace_cli_model:stop": "found no function 'stop', did you mean 'step'?",
    "trace_cli_model:not_callable": "found a int 'not_callable'",
    "trace_cli_model:needs": "found required arguments width",
    "trace_cli_model:broken": "calling it raised RuntimeError: no weights found",
    "trace_cli_model:one": "it returned a Linear, expected (model, inputs)",
    "trace_cli_model:text": "the first value it returned is a str",
    "trace_cli_model:unequal": "found input with a value of type set, expected tensors",
}


@pytest.mark.parametrize("spec", MISTAKES)
def test_mistakes_end_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str], spec: str) -> None:
    assert run(["trace", "capture", spec, "-o", "t.json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {spec}: ")
    assert MISTAKES[spec] in err
    assert err.count("\n") == 1
    assert not Path("t.json").exists()


def test_import_and_show_a_trace_without_tensors(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel = {"ph": "X", "cat": "kernel", "name": "[bold] k", "ts": 1, "dur": 2, "args": {"stream": 7, "device": 0}}
    details = {"Collective name": "allreduce", "In msg nelems": 1024, "dtype": "Float", "stream": 9, "device": 0}
    reduce = {"ph": "X", "cat": "kernel", "name": "nccl", "ts": 2, "dur": 4, "args": details}
    Path("k.json").write_text(json.dumps({"traceEvents": [kernel, reduce]}))
    assert run(["trace", "import", "k.json", "-o", "t.json"]) == 0
    assert run(["trace", "show", "t.json"]) == 0
    shown = capsys.readouterr().out
    assert "[bold] k" in shown
    assert re.search(r"allreduce +1 +4 KiB +4 us", shown)
    assert "Memory peaks" not in shown
    assert run(["trace", "import", "absent.json", "-o", "t.json"]) == 2
    assert "absent.json: found no file" in capsys.readouterr().err


def test_both_kinds_of_costs_at_once_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "capture", "trace_cli_model:step", "--measure", "--hardware", "ndv2", "-o", "t.json"]) == 2
    assert capsys.readouterr().err == "error: --measure --hardware: found both, expected one of them\n"


def test_without_pytorch_the_error_says_how_to_get_it(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run(["trace", "capture", "trace_cli_model:step", "-o", "t.json"]) == 5
    assert "pip install 'treadle[torch]'" in capsys.readouterr().err


def test_an_optimizer_is_added_as_the_third_phase(folder: Path) -> None:
    assert run(["trace", "capture", "trace_cli_model:step", "--optimizer", "adam", "-o", "t.json"]) == 0
    phases = [op.phase for op in store.load("t.json", Trace).ops]
    assert phases == sorted(phases, key=("forward", "backward", "optimizer").index)
    assert phases.count("optimizer") == 2 * 4


def test_sparkline_keeps_the_peak_and_its_width() -> None:
    assert sparkline([0, 1, 2, 8], 4) == "▁▂▃█"
    line = sparkline([0] * 500 + [9] + [0] * 500, 72)
    assert len(line) == 72
    assert line.count("█") == 1
    assert sparkline([], 10) == ""


def test_verifying_prints_one_line_and_ends_in_1_where_a_promise_is_broken(folder, capsys):
    assert run(["trace", "capture", "trace_cli_model:step", "--verify", "-o", "good.json"]) == 0
    assert re.search(
        r"(?m)^verified the capture and plain PyTorch: 1 output, 4 gradients equal", capsys.readouterr().err
    )
    assert run(["trace", "capture", "trace_cli_model:moves", "--verify", "--json", "-o", "moved.json"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["verified"]["other_strides"][0].startswith("_log_softmax_backward_data")
    assert printed.err.splitlines()[-2].endswith("exceeds the promised 1.488 KiB")
    assert printed.err.splitlines()[-1] == "error: trace_cli_model:moves: the capture is not verified"
