"""`treadle run` of a checkpoint plan: agents and ranks as processes, copies compared, a machine killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.treadle.checkpoint.small import problem
from treadle.codegen import emit
from treadle.codegen.targets import PLAN_NAME, generate
from treadle.passes.checkpoint.run import run_lines
from treadle.planner.documents import store
from treadle.planner.errors import InputError
from treadle.planner.passes.checkpoint.planning import plan_checkpoint
from treadle.runtime.checkpoint.compare import MOST_RANKS, run_folder

FOUND: dict[str, Any] = {
    "machines": 2,
    "copies": 2,
    "state_bytes": 1 << 20,
    "iteration_ns": 50_000_000,
    "variants": {
        "planned": {
            "predicted_ns": 50_000_000,
            "measured_ns": 51_000_000,
            "kept_ns": 500_000,
            "drained_ns": 300_000,
            "rest_ns": 200_000,
            "pieces": 8,
            "equal": 7,
        },
        "naive": {"refused": "no buffer holds it"},
    },
    "lost": {
        "machine": 1,
        "step": 12,
        "resumed": 11,
        "source": "memory",
        "holder": "machine 1",
        "phases": {
            "detect": {"predicted_ns": 2_300_000_000, "measured_ns": 2_100_000_000},
            "agree": {"predicted_ns": None, "measured_ns": 700_000_000},
            "fetch": {"predicted_ns": 3_000_000, "measured_ns": None},
            "restart": {"predicted_ns": None, "measured_ns": 9_000_000_000},
            "step": {"predicted_ns": 50_000_000, "measured_ns": 60_000_000},
        },
        "equal": True,
    },
}


def test_what_was_found_in_words() -> None:
    text = "\n".join(run_lines(FOUND))
    assert "planned      50 ms predicted, 51 ms measured (+2.0%), update waited 300 us; 7 of 8 pieces as sent" in text
    assert "naive        not planned: no buffer holds it" in text
    assert "machine 1 in iteration 12; went on from 11 (memory of machine 1)" in text
    assert "planned's    500 us to begin, 300 us for the update to wait, 200 us of cores shared with copies" in text
    assert "detect       2300 ms predicted, 2100 ms measured until the root saw it" in text
    assert "agree        700 ms measured" in text
    assert "fetch" not in text
    assert "losses       equal to an uninterrupted run, bit by bit" in text


def test_a_prediction_that_is_off_has_a_term_that_is_to_blame() -> None:
    slow = {**FOUND["variants"]["planned"], "measured_ns": 90_000_000, "drained_ns": 40_000_000}
    text = "\n".join(run_lines({**FOUND, "variants": {"planned": slow}}))
    assert "the prediction is off most by what it takes for the update to wait" in text


def folder_of(plan: Any, folder: Path) -> Path:
    """What `treadle generate --target checkpoint-config` writes."""
    emit.write(generate(plan, PLAN_NAME, target="checkpoint-config"), folder)
    store.save(plan, folder / PLAN_NAME)
    return folder


def test_more_ranks_than_fit_here_are_refused(tmp_path: Path) -> None:
    plan = plan_checkpoint(problem(machines=MOST_RANKS + 1))
    with pytest.raises(InputError, match=f"found {MOST_RANKS + 1} ranks, at most {MOST_RANKS} run here"):
        run_folder(folder_of(plan, tmp_path))


@pytest.mark.slow  # twice two processes with PyTorch, and agents
def test_copies_are_as_sent_and_a_killed_machine_comes_back_bit_by_bit(tmp_path: Path) -> None:
    found = run_folder(folder_of(plan_checkpoint(problem(state_bytes=1 << 18)), tmp_path), steps=1, timeout=120)
    assert found["findings"] == []
    assert found["lost"]["equal"]
    assert found["lost"]["source"] == "memory"
    assert found["lost"]["resumed"] in range(found["lost"]["step"], found["lost"]["step"] + 3)
    assert min(each["measured_ns"] for each in found["lost"]["phases"].values()) > 0  # agents have said them all
    for name in ("blocking", "no-pipeline", "planned"):
        assert found["variants"][name]["pieces"] == found["variants"][name]["equal"] > 4
