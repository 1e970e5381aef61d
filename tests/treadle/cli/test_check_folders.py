"""`treadle check` of edited artefact folders: texts, facts and entry follow from the plan, or it says what is missing
to know that. Nothing but `run` executes what files contain or name (docs/security.md)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from tests.codegen.swap.swap_plans import plan_with, swapped, timed
from tests.conftest import ROOT
from treadle.capture.graph import capture
from treadle.cli.main import run
from treadle.codegen.emit import text_digest
from treadle.planner.documents import store
from treadle.planner.documents.plan import InputRef
from treadle.planner.documents.trace import Trace

ENTRY = "check_folders_pwned:step"
PWNED = "open('PWNED', 'w').close()\n"


def step():
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    return model, (torch.randn(64, 16), torch.randn(64, 4)), lambda m, x, y: (m(x) - y).square().mean()


TARGETS = {
    "torch": "memory.json", "torch-sac": "memory.json", "torch-compile": "memory.json",
    "torch-swap": "swap.json", "torch-offload": "swap.json",
    "msccl-xml": "collective.json", "mscclpp-json": "collective.json", "cuda": "collective.json",
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of artefacts for each target, next to plans and trace."""
    home = tmp_path_factory.mktemp("folders")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        trace = replace(timed(capture(step, ENTRY, "train")), entry=ENTRY)
        store.save(trace, "step.json")
        trace = store.load("step.json", Trace)
        reference = InputRef(file="step.json", digest=store.digest(trace))
        store.save(replace(plan_with(swapped(trace, 1)), inputs={"trace": reference}), "swap.json")
        budget = ["--budget", "1x", "--reserve", "1KiB"]
        assert run(["plan", "memory", "--trace", "step.json", *budget, "-o", "memory.json"]) == 0
        sizes = ["--hardware", "ring4", "--sketch", "ring", "--size", "64K"]
        assert run(["plan", "collective", "allgather", *sizes, "-o", "collective.json"]) == 0
        for target, plan in TARGETS.items():
            assert run(["generate", plan, "--target", target, "-o", target]) == 0
    return home


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(shutil.copytree(made, tmp_path / "copy"))
    return Path.cwd()


def edit(folder: str, change: Callable[[dict[str, Any]], None]) -> None:
    path = Path(folder, "artefact.json")
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def other(value: Any) -> Any:
    return ["msccl-xml", value] if not isinstance(value, int) else value + 1


@pytest.mark.parametrize("target", TARGETS)
def test_edited_facts_and_entries_are_rejected(here: Path, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", target]) == 0
    manifest = json.loads(Path(target, "artefact.json").read_text())
    assert manifest["facts"]
    facts = manifest["facts"]
    edits: list[tuple[list[str], dict[str, Any]]] = [
        ([f"fact {name} " for name in facts], {"facts": {name: other(value) for name, value in facts.items()}}),
        ([f"no fact {name}, " for name in facts], {"facts": {}}),
        (["fact more 1, the plan makes no fact more"], {"facts": {**facts, "more": 1}}),
        (["entry 'os:abort', the plan makes "], {"entry": "os:abort"}),
    ]
    for lines, edited in edits:
        capsys.readouterr()
        Path(target, "artefact.json").write_text(json.dumps({**manifest, **edited}))
        assert run(["check", target]) == 1
        found = capsys.readouterr().out
        assert not [line for line in lines if line not in found]


@pytest.mark.parametrize(("name", "value"), [("runtime", ["msccl"]), ("runtime", "os"), ("collectives", "plan.json")])
def test_facts_of_another_kind_are_refused_in_one_line(here: Path, name: str, value: Any, capsys) -> None:
    edit("cuda", lambda manifest: manifest["facts"].update({name: value}))
    assert run(["check", "cuda"]) in (1, 2)
    found = capsys.readouterr()
    assert f"artefact.json: $.facts.{name}: found " in found.out + found.err


def redigested(folder: str, name: str, text: str) -> None:
    """Replace a file and repair the manifest."""
    Path(folder, name).write_text(text)
    edit(folder, lambda manifest: manifest["files"].update({name: text_digest(text)}))


@pytest.mark.parametrize("target", ["torch", "torch-swap"])
def test_an_edited_step_without_its_trace_is_not_called_good(
    here: Path, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    redigested(target, "step.py", Path(target, "step.py").read_text() + "extra = 1\n")
    assert run(["check", target]) == 1
    Path("step.json").unlink()
    capsys.readouterr()
    assert run(["check", target]) == 0
    line = f"{target}: not regenerated: no trace 'step.json', name it with --trace ({target} artefacts, "
    assert capsys.readouterr().out.startswith(line)
    assert run(["check", target, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["files"]
    assert row["verdict"] == "unverified"
    assert run(["check", "--fresh", target]) == 1
    assert "  not regenerated: no trace 'step.json'" in capsys.readouterr().out


def test_a_folder_that_lists_no_plan_is_not_called_good(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    redigested("torch", "step.py", Path("torch", "step.py").read_text() + "extra = 1\n")
    edit("torch", lambda manifest: manifest["files"].pop("plan.json"))
    assert run(["check", "torch"]) == 0
    assert capsys.readouterr().out.startswith("torch: not regenerated: no plan in the folder (")
    assert run(["check", "--fresh", "torch"]) == 1


def test_a_file_with_the_name_of_an_input_must_be_that_input(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    redigested("msccl-xml", "ring4", PWNED)
    assert run(["check", "msccl-xml"]) == 1
    assert "msccl-xml/ring4" in capsys.readouterr().out


READING = [
    ["check"], ["check", "--fresh", "--trace", "step.json"], ["report", "-o", "r.html"], ["simulate"],
    ["generate", "-o", "again"],
]  # fmt: skip


def test_only_run_executes_what_files_contain_or_name(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("check_folders_pwned.py").write_text(PWNED)
    monkeypatch.syspath_prepend(str(here))
    redigested("torch", "step.py", PWNED)
    for words in READING:
        target = "torch" if words[0] == "check" else "memory.json"
        run([*words, target])
    assert run(["trace", "show", "step.json"]) == 0
    assert run(["plan", "memory", "--trace", "step.json", "--budget", "1x", "-o", "other.json"]) == 0
    assert not Path("PWNED").exists()
    assert run(["run", "torch"]) == 2
    assert Path("PWNED").exists()
    for command in ("run", "trace capture"):
        assert f"`treadle {command} " in (ROOT / "docs" / "security.md").read_text()
