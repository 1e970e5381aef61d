"""Index plans in the light of their inputs: what changed since, the same configuration by today's measurements, the
bound derived again, and how two plans differ."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.planner.passes.index.index_models import MODEL
from tests.planner.passes.index.index_plans import DRAW, PROBLEM, problem_of, small_plan, unmeasured
from treadle.check.difference import compare_plans
from treadle.check.plan import quality
from treadle.check.regression import judge_today
from treadle.planner.errors import InputError
from treadle.planner.passes.index.configurations import grid
from treadle.planner.passes.index.decided import decided
from treadle.planner.passes.index.planning import plan_index
from treadle.planner.passes.index.room import PASS
from treadle.planner.passes.index.workload import IndexWorkload

WORKLOAD = IndexWorkload(version=1, name="w", draw=DRAW)
SLOWER = problem_of((9, 4, 3), (900, 420, 410), sizes=(2000, 2600, 2700))
"""A day on which the chosen configuration is slower than another one."""


def test_inputs_that_say_the_same_are_no_finding_and_others_name_what_changed() -> None:
    assert PASS.check_inputs(small_plan(), {}) == []
    assert PASS.check_inputs(small_plan(), {"problem": PROBLEM, "workload": WORKLOAD}) == []
    other = {"workload": replace(WORKLOAD, draw=replace(DRAW, seed=8)), "problem": replace(PROBLEM, loop_ns=8)}
    assert PASS.check_inputs(small_plan(), other) == [
        "$.decisions.problem.loop_ns: not what the inputs say now; plan again",
        "$.decisions.problem.workload: not what the inputs say now; plan again",
    ]
    assert PASS.check_inputs(small_plan(), {"model": replace(MODEL, name="evaluator")}) == []
    assert PASS.check_inputs(small_plan(), {"model": MODEL}) == [
        "$.decisions.problem.model: not what the inputs say now; plan again"
    ]


def test_the_configuration_has_the_figures_of_today() -> None:
    assert PASS.today(small_plan(), {"workload": WORKLOAD}) is None
    now = PASS.today(small_plan(), {"problem": SLOWER})
    assert now is not None
    assert (now.chosen, now.time_ns, now.second) == (grid()[1], 420, None)  # its second is no candidate today
    assert PASS.check(now) == []
    assert "chosen: found gapped array 1/8, expected gapped array 1/32, which takes 410 ns" in PASS.inconsistent(now)[0]
    judged = judge_today(small_plan(), {"problem": SLOWER}, 0.1, changed=True)
    assert judged.findings[0].startswith("regression: time 420 ns today, 350 ns recorded, +20.00%")


def test_a_configuration_that_is_over_the_memory_today_is_a_finding() -> None:
    judged = judge_today(small_plan(), {"problem": replace(SLOWER, max_memory_ratio=1.3)}, 1.0, changed=True)
    assert judged.findings == [
        "today: $.decisions.chosen: found gapped array 1/8, expected one within the memory ratio 1.3"
    ]


def test_a_configuration_without_figures_today_cannot_be_compared() -> None:
    with pytest.raises(InputError, match="gapped array 1/8 is not measured today, as in the plan; plan again"):
        PASS.today(small_plan(), {"problem": problem_of((9,), (9,))})
    with pytest.raises(InputError, match="gapped array 1/8 is not measured today"):
        PASS.today(small_plan(), {"problem": problem_of((9, 4, 3))})
    with pytest.raises(InputError, match="gapped array 1/32 is not only predicted today"):
        PASS.today(unmeasured(), {"problem": SLOWER})


def test_a_bound_that_the_problem_does_not_prove_is_a_finding() -> None:
    assert PASS.rebound(small_plan(), {}) == ([], 7)
    false = replace(small_plan(), certificate=replace(small_plan().certificate, lower_bound=8.0))
    assert PASS.rebound(false, {}).findings == ["certificate: lower bound 8 ns, the problem proves only 7 ns"]


def test_a_plan_is_never_called_optimal() -> None:
    assert quality(small_plan()) == "gap 98.00%"
    assert quality(plan_index(replace(PROBLEM, loop_ns=350))) == "the fastest of those measured"
    assert "optimal" not in PASS.optimal(unmeasured())


def test_a_plan_is_described_by_its_operations_and_keys() -> None:
    assert PASS.describe(small_plan().decisions) == "index plan of 40 operations on 100 loaded keys"


def test_differences_are_said_in_words_of_the_pass() -> None:
    after = decided(replace(PROBLEM, max_memory_ratio=3.0, loop_ns=9))
    assert [str(change) for change in PASS.differences(small_plan().decisions, after)] == [
        "max memory ratio: 1.5 -> 3 (+100.00%)",
        "loop: 7 ns -> 9 ns (+28.57%)",
        "configuration: gapped array 1/8 -> gapped array 2/8",
        "time: 350 ns -> 310 ns (-11.43%)",
        "memory: 2.441 KiB -> 3.906 KiB (+60.00%)",
        "second best: gapped array 2/2 -> gapped array 1/8",
        "time of the second best: 360 ns -> 350 ns (-2.78%)",
        "over the memory limit: 1 -> 0 (-100.00%)",
    ]
    assert PASS.differences(after, after) == []
    measured = {str(change) for change in PASS.differences(unmeasured().decisions, small_plan().decisions)}
    assert {"time is: predicted -> measured", "top: 0 -> 4", "candidates: 3 -> 6 (+100.00%)"} <= measured
    drawn = replace(after, problem=replace(after.problem, workload=replace(DRAW, family="osm", skew=0.5)))
    assert [str(change) for change in PASS.differences(after, drawn)] == ["family: books -> osm", "skew: 0 -> 0.5"]


def test_plans_of_one_problem_have_no_difference() -> None:
    assert not any(compare_plans(small_plan(), plan_index(PROBLEM)).values())
