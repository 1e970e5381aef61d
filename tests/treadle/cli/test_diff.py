"""`treadle diff`: equal, different in words of the pass, or not comparable."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import GOLDEN
from treadle.cli.main import run

PLANS = {
    "memory": "memory --problem memory-problem.yaml --gap 0 --budget",
    "swap": "swap --problem swap-problem.yaml --method exact --workers 1 --device-memory",
    "collective": "collective allgather --hardware cpu-2x2 --size 64KiB --method",
    "fusion": "fusion examples.fusion.sgd:program --hardware switch4 --bind",
}
OPTIONS = {
    "memory": ("445", "600"),
    "swap": ("12B", "16B"),
    "collective": ("milp", "greedy"),
    "fusion": ("N=4096", "N=1M"),
}


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plans")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("memory-problem.yaml", "swap-problem.yaml", "step.json"):
            shutil.copy(GOLDEN / "inputs" / name, folder)
        for name, command in PLANS.items():
            for place, option in enumerate(OPTIONS[name]):
                assert run([*f"plan {command} {option} -o {name}{place}.json".split()]) == 0
    return folder


@pytest.fixture
def here(plans: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(plans)
    return plans


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_equals_itself(name, here, capsys):
    assert run(["diff", f"{name}0.json", f"{name}0.json"]) == 0
    assert capsys.readouterr().out == f"equal: {name} plans\n"


def test_other_decisions_are_named_in_words_of_the_pass(here, capsys):
    words = {
        "memory": "  budget: 445 B -> 600 B (+34.83%)",
        "swap": "  device.memory: 12 B -> 16 B (+33.33%)",
        "collective": "  chunk 0: path 0->1, 0->2->3 instead of 0->1->3, 0->2",
        "fusion": "  sizes.N: 4,096 -> 1,048,576 (256x)",
    }
    for name, line in words.items():
        assert run(["diff", f"{name}0.json", f"{name}1.json"]) == 1
        out, err = capsys.readouterr()
        assert line in out
        assert err.startswith(f"error: {name}0.json and {name}1.json differ in ")


def test_json_has_every_change_with_its_values(here, capsys):
    assert run(["diff", "memory0.json", "memory1.json", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["equal"] is False
    budget = {"what": "budget_bytes", "how": "445 B -> 600 B (+34.83%)", "before": 445, "after": 600}
    assert budget in found["changes"]["decisions"]


def test_changed_inputs_are_found_by_their_digests(here, capsys):
    plan = json.loads(Path("memory0.json").read_text())
    plan["inputs"]["problem"]["digest"] = "sha256:" + "0" * 64
    Path("other.json").write_text(json.dumps(plan))
    assert run(["diff", "memory0.json", "other.json"]) == 1
    assert capsys.readouterr().out.startswith("inputs\n  problem: memory-problem.yaml has changed (")


def test_long_lists_end_in_their_number(here, capsys, monkeypatch):
    monkeypatch.setattr("treadle.cli.diff.MOST", 2)
    assert run(["diff", "collective0.json", "collective1.json"]) == 1
    assert "  and " in (out := capsys.readouterr().out)
    assert " more (--json has all)" in out


def test_folders_of_artefacts_are_compared_by_manifest_and_plan(here, capsys):
    for name in ("collective0", "collective1"):
        assert run(["generate", f"{name}.json", "--target", "msccl-xml", "-o", name]) == 0
    assert run(["diff", "collective0", "collective0"]) == 0
    capsys.readouterr()
    assert run(["diff", "collective0", "collective1"]) == 1
    assert "artefacts\n  allgather.xml: differs" in (out := capsys.readouterr().out)
    assert "  chunk 0: path " in out


@pytest.mark.parametrize(
    ("pair", "line"),
    [
        (("memory0.json", "swap0.json"), "swap0.json: found a swap plan, expected a memory plan like the first file"),
        (("memory0.json", "step.json"), "step.json: found a trace, expected a plan like the first file"),
        (("memory0.json", "."), "memory0.json: found a file to compare with the folder ., expected a folder too"),
        (("x.xml", "x.xml"), "x.xml: found MSCCL XML, expected a document; compare the plans that generated it"),
        (("absent.json", "swap0.json"), "absent.json: cannot read: No such file or directory"),
    ],
)
def test_what_cannot_be_compared_is_one_line(pair, line, here, capsys):
    Path("x.xml").write_text("<algo/>")
    assert run(["diff", *pair]) == 2
    assert capsys.readouterr().err == f"error: {line}\n"


def test_other_documents_are_compared_by_their_fields(here, capsys):
    assert run(["diff", str(GOLDEN / "inputs" / "step.json"), str(GOLDEN / "inputs" / "adam.json")]) == 1
    assert "  ops: 24 more (" in capsys.readouterr().out
