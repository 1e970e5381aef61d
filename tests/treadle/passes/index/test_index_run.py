"""`treadle run` of an index: every answer compared on what was generated, drawn and from files, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.planner.passes.index.index_plans import problem_of
from tests.treadle.passes.index.dictionary_index import DictionaryIndex
from tests.treadle.passes.index.index_commands import DRAW, FILES, PLAN, MadeUp, made_up
from treadle.cli.main import run
from treadle.codegen.emit import text_digest
from treadle.passes.index.comparing import wrong_answers
from treadle.planner.documents import store
from treadle.planner.passes.index.configurations import FragmentedLog, GappedArray, IndexConfiguration
from treadle.planner.passes.index.operations import Operations, Workload, payloads_of
from treadle.planner.passes.index.planning import plan_index
from treadle.runtime.index.learned_index import LearnedIndex

__all__ = ["made_up"]

SMALL = (
    GappedArray(most_search=2, most_shifts=8),
    FragmentedLog(fragment_keys=16, most_fragments=8, new_fragments=2),
)


@pytest.fixture
def by_dictionary(monkeypatch: pytest.MonkeyPatch) -> DictionaryIndex:
    """A dictionary in place of the compiled index."""
    index = DictionaryIndex()
    monkeypatch.setattr("treadle.runtime.index.library.load_library", lambda texts=None: None)
    monkeypatch.setattr("treadle.runtime.index.learned_index.LearnedIndex", lambda *_, **__: index)
    return index


def generated(arguments: list[str], folder: str = "made") -> None:
    assert run(arguments) == 0
    assert run(["generate", "plan.json", "--target", "index", "-o", folder]) == 0


@pytest.mark.parametrize("arguments", [PLAN, [*FILES, "--sample", "1500"]], ids=["drawn", "files"])
def test_a_run_compares_every_answer_and_prints_planned_and_measured(
    arguments: list[str],
    made_up: MadeUp,
    by_dictionary: DictionaryIndex,
    here: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    generated(arguments)
    capsys.readouterr()
    assert run(["run", "made"]) == 0
    lines = capsys.readouterr().out.splitlines()
    operations = 1500 if arguments[2] == "--data" else 2000
    assert lines[1] == f"  answers    {operations} compared, as those of a dictionary"
    assert lines[2].startswith(f"  operation  {9_000 / operations:.4g} ns planned, ")
    assert lines[3].endswith(" measured")
    assert run(["run", "made", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "treadle.run-index/1"
    assert found["time_ns"]["planned"] == 9_000
    assert found["findings"] == []


def test_wrong_answers_end_with_1_and_name_the_operation(
    made_up: MadeUp, by_dictionary: DictionaryIndex, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generated(FILES)
    (operation, key, *_), *_ = ((here / "operations.txt").read_text().split(), "")
    by_dictionary.wrong_key = int(key)
    capsys.readouterr()
    assert run(["run", "made"]) == 1
    printed = capsys.readouterr()
    assert "not those of a dictionary" in printed.out
    assert f"operation 0: {operation} {key} gave " in printed.err


def test_files_of_a_workload_are_found_by_name_and_known_by_their_bytes(
    made_up: MadeUp,
    by_dictionary: DictionaryIndex,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    generated(FILES)
    for folder in ("elsewhere", "together"):
        (here / folder).mkdir()
    shutil.move(here / "made", here / "together" / "made")
    monkeypatch.chdir(here / "elsewhere")
    made = "../together/made"
    capsys.readouterr()
    assert run(["run", made]) == 2
    assert "found no 'keys.npy' next to the plan, next to its folder or here" in capsys.readouterr().err
    for place in ("together", "together/made", "elsewhere"):
        for name in ("keys.npy", "operations.txt"):
            shutil.copy(here / name, here / place)
        assert run(["run", made]) == 0
        (here / place / "operations.txt").write_text("lookup 1\n")
        assert run(["run", made]) == 2
        assert "operations.txt: found other bytes than those that the plan was made from" in capsys.readouterr().err
        for name in ("keys.npy", "operations.txt"):
            (here / place / name).unlink()


def test_a_plan_of_other_counts_than_its_workload_has_is_refused(
    made_up: MadeUp, by_dictionary: DictionaryIndex, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generated(PLAN)
    plan = json.loads((here / "plan.json").read_text())
    plan["decisions"]["problem"]["lookups"] = 0
    (here / "plan.json").write_text(json.dumps(plan))
    assert run(["generate", "plan.json", "--target", "index", "-o", "edited"]) == 0
    capsys.readouterr()
    assert run(["run", "edited"]) == 2
    printed = capsys.readouterr().err
    assert "$.decisions.problem.lookups: found 0, its workload has " in printed
    assert printed.endswith("; plan again\n")


def test_only_what_treadle_writes_is_compiled(
    made_up: MadeUp, by_dictionary: DictionaryIndex, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generated(PLAN)
    header = here / "made" / "treadle_index.hpp"
    header.write_text(header.read_text() + "// edited\n")
    assert run(["run", "made"]) == 2
    assert "treadle_index.hpp: found a text other than the one that was generated" in capsys.readouterr().err
    manifest = json.loads((here / "made" / "artefact.json").read_text())
    manifest["files"]["treadle_index.hpp"] = text_digest(header.read_text())
    (here / "made" / "artefact.json").write_text(json.dumps(manifest))
    assert run(["run", "made"]) == 2
    assert "treadle_index.hpp: found another text than treadle makes of the plan" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "value"), [("--backend", "gloo"), ("--world", "2")])
def test_options_of_other_passes_are_refused(
    option: str, value: str, made_up: MadeUp, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generated(PLAN)
    assert run(["run", "made", option, value]) == 2
    assert f"{option}: found {value}, expected " in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("configuration", SMALL, ids=["gapped", "log"])
def test_the_compiled_index_answers_as_a_dictionary(
    configuration: IndexConfiguration, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = {"bulk": 1000, "lookups": 1000, "inserts": 1000, "whole": 2000, "keys_at_end": 2000}
    problem = problem_of((9e5,), (800_000,), configurations=(configuration,), workload=DRAW, **counts)
    store.save(plan_index(problem), here / "plan.json")
    assert run(["generate", "plan.json", "-o", "made"]) == 0
    capsys.readouterr()
    assert run(["run", "made", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["findings"] == []
    assert found["bytes"]["measured"] > 16 * 2000


@pytest.mark.slow
@pytest.mark.parametrize("configuration", SMALL, ids=["gapped", "log"])
def test_scans_and_deletes_are_answered_as_by_a_dictionary(configuration: IndexConfiguration) -> None:
    rng = np.random.default_rng(3)
    keys = np.unique(rng.integers(0, 5000, 1000, dtype=np.uint64))
    ops = rng.integers(0, 4, 20_000, dtype=np.uint8)
    asked = rng.integers(0, 5000, 20_000, dtype=np.uint64)
    operations = Operations(ops, asked, rng.integers(0, 30, 20_000, dtype=np.uint64))
    workload = Workload(keys, payloads_of(keys), operations)
    with LearnedIndex(configuration) as index:
        index.load(workload.keys, workload.payloads)
        assert wrong_answers(index, workload) == []
