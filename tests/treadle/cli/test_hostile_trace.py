"""A trace or a folder from elsewhere is data: whatever its texts say, nothing of it is executed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import treadle
from treadle.cli.main import run
from treadle.codegen import emit
from treadle.planner.documents import store
from treadle.planner.documents.artefact import Artefact
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.runtime.followers import follow
from treadle.runtime.swap import compare

CALL = "__import__('os').system('touch PWNED')"
LINES = f'x"""\n{CALL}\n"""'
ONE_LINE = f'x"""; {CALL}; """'
PLAN = ["plan", "memory", "--trace", "step.json", "--budget", "10MiB"]
SWAP = ["plan", "swap", "--trace", "step.json", "--hardware", "p3-v100-16gb", "--time-limit", "1", "-o", "swap.json"]
MODEL = """
import torch
from torch import nn


def step():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 2))
    return model, (torch.randn(16, 4), torch.randn(16, 2)), lambda m, x, y: (m(x) - y).square().mean()
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a model, its trace and a plan."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        Path("hostile_model.py").write_text(MODEL)
        assert run(["trace", "capture", "hostile_model:step", "--hardware", "p3-v100-16gb", "-o", "step.json"]) == 0
        assert run([*PLAN, "-o", "memory.json"]) == 0
        yield folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In a copy of it, where no file PWNED may appear."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    yield
    assert not Path("PWNED").exists()


def rewritten(change: Callable[[Any], None]) -> None:
    raw = json.loads(Path("step.json").read_text())
    change(raw)
    Path("step.json").write_text(json.dumps(raw))


def test_a_name_that_closes_the_docstring_stays_a_name(here: None, monkeypatch: pytest.MonkeyPatch):
    """The attack in one line, which is a name that may be: plan, generate, check, run, apply and swap."""
    monkeypatch.setattr(compare, "EMULATED", 0.05)
    rewritten(lambda raw: raw.update(name=ONE_LINE))
    assert run([*PLAN, "-o", "memory.json"]) == 0
    for target in ("torch", "torch-sac", "torch-compile"):
        assert run(["generate", "memory.json", "--target", target, "-o", target]) == 0
        assert CALL in next(Path(target).glob("*.py")).read_text(), "the name is in the docstring"
    assert run(["check", "--fresh", "torch", "torch-sac", "torch-compile"]) == 0
    assert run(["run", "torch", "--steps", "1"]) == 0
    model, inputs, _ = __import__("hostile_model").step()
    treadle.apply(model, "memory.json")(*inputs).backward()
    assert run(SWAP) == 0
    assert run(["generate", "swap.json", "-o", "torch-swap"]) == 0
    assert CALL in Path("torch-swap/step.py").read_text()
    assert run(["check", "--fresh", "torch-swap"]) == 0
    assert run(["run", "torch-swap", "--steps", "1"]) == 0
    treadle.swapped(model, "torch-swap")(*inputs)


def test_a_name_of_several_lines_is_refused(here: None, capsys: pytest.CaptureFixture[str]):
    rewritten(lambda raw: raw.update(name=LINES))
    capsys.readouterr()
    assert run([*PLAN, "-o", "memory.json"]) == 2
    error = capsys.readouterr().err
    assert error.startswith('error: step.json: $.name: found \'x"""\\n__import__')
    assert error.count("\n") == 1


def test_a_name_of_several_lines_in_a_program_stays_a_name(here: None):
    """A trace that a program makes itself is not read from a file."""
    trace = replace(store.load("step.json", Trace), name=LINES)
    plan = replace(store.load_any("memory.json"), inputs={})
    model, inputs, _ = __import__("hostile_model").step()
    treadle.apply(model, plan, trace)(*inputs).backward()


def _calls(raw: Any) -> Any:
    return next(op for op in raw["ops"] if op["target"].startswith("aten.native_dropout"))


ATTACKS: dict[str, Callable[[Any], None]] = {
    "target": lambda raw: _calls(raw).update(target=f"aten.x.default(0), {CALL}, aten.mm.default"),
    "float": lambda raw: _calls(raw)["args"].append({"float": f'1"), {CALL}, float("1'}),
    "dtype": lambda raw: _calls(raw)["args"].append({"dtype": f"float32, {CALL}"}),
    "layout": lambda raw: _calls(raw)["args"].append({"layout": f"strided, {CALL}"}),
    "keyword": lambda raw: _calls(raw).update(kwargs={f"x={CALL}, y": 1}),
    "word of Python": lambda raw: _calls(raw).update(kwargs={"class": 1}),
    "file": lambda raw: _calls(raw).update(target="aten.save.default", args=[{"tensor": "input_0"}, "PWNED"]),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_call_that_is_more_than_a_call_is_refused(attack: str, here: None, capsys: pytest.CaptureFixture[str]):
    rewritten(ATTACKS[attack])
    for arguments in ([*PLAN, "-o", "memory.json"], SWAP, ["trace", "show", "step.json"]):
        capsys.readouterr()
        assert run(arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: step.json: $.ops[")
        assert "expected" in error
        assert error.count("\n") == 1


@pytest.mark.parametrize("target", ["load_library.x.y", "aten.name.format", "_dir.append.x", "aten.nothing.default"])
def test_a_target_that_is_no_operator_ends_in_one_line(target: str, here: None, capsys: pytest.CaptureFixture[str]):
    rewritten(lambda raw: _calls(raw).update(target=target))
    assert run([*PLAN, "-o", "memory.json"]) == 0
    assert run(["generate", "memory.json", "--target", "torch", "-o", "other"]) == 0
    capsys.readouterr()
    assert run(["run", "other", "--steps", "1"]) == 2
    error = capsys.readouterr().err
    assert f"found operator {target!r}, expected one that this PyTorch has" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("target", ["torch", "torch-sac", "torch-compile"])
def test_a_folder_with_other_code_is_not_run(target: str, here: None, capsys: pytest.CaptureFixture[str]):
    """Digests do not help: whoever changes the file changes them as well."""
    assert run(["generate", "memory.json", "--target", target, "-o", "made"]) == 0
    manifest = store.load("made/artefact.json", Artefact)
    file = next(name for name in manifest.files if name.endswith(".py"))
    text = Path("made", file).read_text() + f"\n{CALL}\n"
    Path("made", file).write_text(text)
    files = {**manifest.files, file: emit.text_digest(text)}
    store.save(replace(manifest, files=files), "made/artefact.json")
    Path("step.json").unlink()
    capsys.readouterr()
    assert run(["check", "made"]) == 1, "also where nothing can be generated again"
    assert "expected nothing but what treadle generates" in capsys.readouterr().out
    assert run(["run", "made", "--steps", "1"]) == 2
    assert "expected nothing but what treadle generates" in capsys.readouterr().err
    with pytest.raises(InputError, match="expected nothing but what treadle generates"):
        follow(target, text, "x", __import__("hostile_model").step()[0], None)
