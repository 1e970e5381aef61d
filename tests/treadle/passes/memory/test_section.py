"""The report's section of a memory plan: every op is listed, and thousands of them still make a picture."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace

from tests.planner.passes.memory import cases
from tests.planner.passes.memory.test_choices import decisions
from treadle.passes.memory.figure import memory_svg
from treadle.passes.memory.section import THIN, memory_section
from treadle.planner.passes.memory.lower import store_all
from treadle.planner.passes.memory.methods.least_peak import least_peak_schedule
from treadle.planner.passes.memory.planning import decide
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.report.page import Page, render


def test_ops_are_told_with_what_becomes_of_them() -> None:
    section = memory_section("mine", decisions(), {})
    families, forward, backward = section.tables
    assert ("conv", "1", "1 convolution by winograd") in families.rows
    assert [row[:5] for row in forward.rows] == [
        ("convolution 0", "4 B", "kept", "winograd", ""),
        ("batch_norm 1", "4 B", "recomputed", "default", ""),
        ("relu 2", "4 B", "freed, not needed again", "default, in place", ""),
        ("relu_mask 3", "1 B", "kept", "default", ""),
    ]
    assert backward.rows == (("threshold_backward 0", "mask", "int", "relu_mask 3", "", "0.0"),)


def test_the_picture_parts_kept_from_recomputed() -> None:
    problem = cases.a(6)
    made = decide(problem, least_peak_schedule(problem))
    drawn = memory_section("a", made, {"measured peak": 6}).pictures[0].svg
    for label in ("activations, first run", "activations, recomputed", "live gradients", "budget", "measured peak"):
        assert f">{label}<" in drawn
    assert "workspace" not in drawn


def long_chain(count: int) -> MemoryProblem:
    bwd = [cases.backward(2, 2, ((k - 1,) if k else (), 0, 2)) for k in reversed(range(count))]
    return cases.problem(10**6, cases.chain(*(2 + k % 3 for k in range(count))), bwd)


def test_thousands_of_ops_make_a_small_picture_with_the_true_peak_and_a_folded_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[int] = []

    def draw(points: Any, **given: Any) -> str:
        drawn.append(max(sum(level.values()) for _, level in points))
        return memory_svg(points, **given)

    monkeypatch.setattr("treadle.passes.memory.section.memory_svg", draw)
    problem = long_chain(1500)
    made = decide(problem, store_all(problem))
    section = memory_section("long", made, {})
    assert len(made.program) > 4 * THIN
    memory, timeline = (picture.svg for picture in section.pictures)
    assert len(memory) < 600_000
    assert len(re.findall("<path", timeline)) < 3 * THIN
    assert drawn == [made.exact_peak_bytes]
    page = render(Page("t", "", (), (section,)))
    assert "<summary>Forward ops in order (1500 rows)</summary>" in page
    assert page.count("<details>") == page.count("</details>") == 1


def test_slower_implementations_and_recomputation_are_told_apart() -> None:
    text = memory_section("mine", replace(decisions(), objective_ns=150, store_all_ns=100), {}).text
    assert "+50.0% against keeping everything: 2.0% for recomputation, 48.0% for implementations" in text
