"""Tiling plans as a timeline and as a text of configuration."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from tests.conftest import Golden
from tests.planner.passes.tiling.random_problems import published, ruled
from tests.planner.passes.tiling.tiling_plans import greedy_plan, layer_plan
from tests.planner.samples import TILING_PLAN
from treadle.codegen.targets import targets_for
from treadle.codegen.tiling.config import FILE_NAME, configuration
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.tiling.decisions import TilingDecisions
from treadle.planner.passes.tiling.planning import TilingOptions, plan_tiling


def timeline(plan: Plan[TilingDecisions]):
    return targets_for("tiling").timeline(plan)


def test_the_timeline_ends_when_the_plan_does() -> None:
    for seed in range(5):
        for problem in (published(seed), ruled(seed, length=3)):
            plan = plan_tiling(problem) if not problem.published else _row(problem)
            assert timeline(plan).schedule.makespan == plan.decisions.time_ns, seed


def _row(problem):
    return plan_tiling(problem, options=TilingOptions(method="row"))


def test_work_and_moves_are_tasks_in_the_order_of_operators() -> None:
    found = timeline(layer_plan())
    assert [task.name for task in found.tasks] == [
        *("x.given", "w.given", "mm", "view", "mean", "allreduce loss", "spread", "dmm", "allreduce dw"),
    ]
    assert found.tasks[2].duration == 4000 // 4 + 3
    assert found.tasks[5].resources == ("axis data", "axis tensor")
    busy = found.busy_ns()
    assert busy["workers"] + 28 + 138 == layer_plan().decisions.time_ns


def test_the_configuration_says_who_has_what_and_what_moves_when() -> None:
    made = configuration(greedy_plan())
    said = json.loads(made.files[FILE_NAME])
    assert said["mesh"] == [{"axis": "workers", "workers": 3}]
    assert said["arrays"][0] == {"array": "x", "shape": [6, 8], "dtype": "float32", "tiling": ["D1"]}
    assert said["operators"][8]["reads"] == [["S0"], ["R"]]
    assert said["moves"][0]["after"] == "x.new"
    assert (said["moves"][3]["before"], said["moves"][3]["input"]) == ("z.join", 1)
    assert sum(move["bytes"] for move in said["moves"]) == made.facts["moved_bytes"] == 256


@pytest.mark.parametrize("name", ["x\n", "</script>", '"'])
def test_names_of_other_programs_stay_data(name: str) -> None:
    plan = greedy_plan()
    renamed = replace(plan, decisions=replace(plan.decisions, problem=replace(plan.decisions.problem, name=name)))
    assert json.loads(configuration(renamed).files[FILE_NAME])["program"] == name


@pytest.mark.golden
def test_the_configuration_is_golden(golden: Golden) -> None:
    golden(f"tiling/{FILE_NAME}", configuration(TILING_PLAN).files[FILE_NAME])
