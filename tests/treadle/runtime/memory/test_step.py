"""A generated step is loaded only if its constants fit each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle.planner.errors import InputError
from treadle.runtime.planned_step import load_step

TEXT = (Path(__file__).parents[3] / "golden" / "torch" / "tiny.step.py").read_text(encoding="utf-8")
HANDED = 'HANDED = ["linear.weight", "conv.weight"]'


def test_gradients_are_handed_over_in_groups():
    assert load_step(TEXT, "tiny").together == [
        ["linear.bias", "linear.weight"],
        ["norm.weight", "norm.bias", "conv.weight"],
    ]
    assert [len(group) for group in load_step(TEXT.replace(HANDED, ""), "tiny").together] == [1] * 5


@pytest.mark.parametrize(
    "names", ['["linear.weight"]', '["conv.weight", "linear.weight"]', '["linear.weight", "x", "conv.weight"]', "[]"]
)
def test_groups_that_lose_or_repeat_gradients_are_refused(names):
    with pytest.raises(InputError, match=r"tiny: found HANDED .*, expected some of GRADIENTS in its order"):
        load_step(TEXT.replace(HANDED, f"HANDED = {names}"), "tiny")
