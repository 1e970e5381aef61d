"""What `treadle plan fusion --measure` tries, with times that are made up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.planner.passes.fusion.by_hand import sgd
from treadle.codegen.fusion.lower import Lowered
from treadle.planner.passes.fusion.check import check
from treadle.planner.passes.fusion.planning import plan_of
from treadle.planner.passes.fusion.program import Bindings
from treadle.planner.passes.fusion.ranking import FusionProblem, rank_schedules
from treadle.probe.resolve import load_hardware
from treadle.runtime.fusion import choose
from treadle.runtime.fusion.build import Compiled

FASTEST = "all-pairs, LL, 4 channels"


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what is run; `fuse(RS-C-AG)` on FASTEST is the fastest."""
    names: list[str] = []

    def build(lowered: Lowered, target: str) -> Compiled:
        return Compiled(Path("nowhere"), "process", 4, lowered.buffers)

    def seconds(candidates: Sequence[Any], repeats: int) -> list[Sequence[float]]:
        names.extend(f"{each.ranked.name} | {each.name}" for each in candidates)
        return [
            [each.ranked.time_ns * (1e-12 if (each.ranked.name, each.name) == ("fuse(RS-C-AG)", FASTEST) else 1e-9)]
            * repeats
            for each in candidates
        ]

    monkeypatch.setattr(choose, "build", build)
    monkeypatch.setattr(choose, "_seconds", seconds)
    return names


def test_the_plan_is_what_was_fastest(tried: list[str]) -> None:
    found = rank_schedules(FusionProblem(sgd("ar"), Bindings({"N": 1 << 20}, 4), load_hardware("switch4", None)))
    found, tuned = choose.measured(found, 6)
    plan = plan_of(found, {}, tuned)
    decisions = plan.decisions
    assert check(decisions) == []
    (stage,) = decisions.stages
    assert f"{stage.algorithm}, {stage.protocol}, {stage.channels} channels" == FASTEST
    assert plan.certificate.objective == decisions.time_ns, "about the predicted time"
    times = decisions.measured_ns
    assert min(times.values()) == times["fuse(RS-C-AG)"]
    assert {each.what: each.chosen for each in plan.provenance.tuned} == {
        "schedule": "fuse(RS-C-AG)",
        "algorithm and protocol": FASTEST,
        "channels": FASTEST,
    }
    assert [len(each.measured) for each in plan.provenance.tuned] == [min(6, len(each.ranked)) for each in tuned]


def test_every_algorithm_and_protocol_is_tried(tried: list[str]) -> None:
    found = rank_schedules(FusionProblem(sgd("ar"), Bindings({"N": 1 << 12}, 4), load_hardware("cpu-2x2", None)))
    choose.measured(found, 6)
    on = [name.split(" | ")[1].split(", ") for name in tried if name.startswith("fuse(RS-C-AG) | ") and "," in name]
    assert {protocol for _, protocol, _ in on} == {"Simple", "LL", "LL128"}
    assert {algorithm for algorithm, _, _ in on} == {"ring", "hierarchical"}, "all pairs belong to one node"
    assert len({channels for _, _, channels in on}) > 1
