"""The text of configuration: every machine sends and receives one state at a time, all bytes once; golden."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import Golden
from tests.planner.passes.checkpoint.checkpoint_plans import COPYING, by_hand, decided_for
from tests.planner.samples import CHECKPOINT_PLAN
from treadle.codegen.checkpoint.config import FILE_NAME, config_of, configuration
from treadle.codegen.targets import generate
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions

PLANS = {
    "hand": by_hand,
    "racks": lambda: decided_for(COPYING),
    "ring": lambda: decided_for(COPYING, "ring"),
}


@pytest.mark.parametrize("name", PLANS)
def test_who_sends_and_who_receives_is_the_same_transfer(name: str) -> None:
    decisions: CheckpointDecisions = PLANS[name]()
    machines: list[dict[str, Any]] = config_of(decisions)["machines"]
    for each in machines:
        assert each["holders"] == [each["machine"], *each["send_to"]]
        for turn, receiver in enumerate(each["send_to"]):
            assert machines[receiver]["receive_from"][turn] == each["machine"]
            assert each["machine"] in machines[receiver]["hosts"]
        assert len(each["hosts"]) == decisions.problem.copies


def test_pieces_and_own_copies_are_those_of_the_plan() -> None:
    decisions = decided_for(COPYING)
    config = config_of(decisions)
    assert [dict(zip(config["piece_fields"], row, strict=True)) for row in config["pieces"]] == [
        {name: getattr(piece, name) for name in piece.__struct_fields__} for piece in decisions.pieces
    ]
    assert sum(size for _, _, size in config["own"]) == config["state_bytes"]
    assert [each["domain"] for each in config["machines"]] == [0, 0, 1, 1, 2, 2]


@pytest.mark.golden
def test_the_text_is_golden(golden: Golden) -> None:
    golden(f"checkpoint/{FILE_NAME}", configuration(CHECKPOINT_PLAN).files[FILE_NAME])


def test_the_first_target_is_the_text() -> None:
    made = generate(CHECKPOINT_PLAN, "plan.json")
    assert made.target == "checkpoint-config"
    assert json.loads(made.files[FILE_NAME])["job"] == "five machines"
    assert made.facts["pieces"] == 5
