"""The compression pass as a record: plans against the inputs of today."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.codegen.compression.compression_plans import PLAIN, plan_with
from tests.planner.passes.compression.test_extract import COSTS, STEP, hardware
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InputError
from treadle.planner.passes.compression.decided import decided, plain_groups
from treadle.planner.passes.compression.decisions import CompressionDecisions, GradientGroup
from treadle.planner.passes.compression.extract import problem_of
from treadle.planner.passes.compression.room import PASS

HOSTS = hardware("hosts-2x2")
INPUTS = {"trace": STEP, "hardware": HOSTS, "costs": COSTS}


def plan() -> Plan[CompressionDecisions]:
    problem = problem_of(STEP, HOSTS, COSTS, ["dgc"])
    groups = (GradientGroup(first=0, last=1, steps=PLAIN),)
    return plan_with(decided(problem, groups, {"uncompressed": plain_groups(problem)}))


def test_a_plan_fits_its_inputs_and_no_others() -> None:
    assert PASS.check_inputs(plan(), INPUTS) == []
    other = {**INPUTS, "costs": replace(COSTS, pack=None)}
    assert PASS.check_inputs(plan(), other) == ["$.decisions.problem.pack: not what the inputs say now; plan again"]
    assert PASS.check_inputs(plan(), {"trace": STEP}) == []
    assert PASS.check_inputs(plan(), {"problem": replace(plan().decisions.problem, forward_ns=7)}) != []


def test_groups_are_timed_on_the_inputs_of_today() -> None:
    assert PASS.today(plan(), INPUTS) == plan().decisions
    assert PASS.today(plan(), {"trace": STEP}) is None
    slower = replace(STEP, ops=tuple(replace(op, time_ns=op.time_ns and 2 * op.time_ns) for op in STEP.ops))
    found = PASS.today(plan(), {**INPUTS, "trace": slower})
    assert found is not None
    assert found.groups == plan().decisions.groups
    assert found.time_ns > plan().decisions.time_ns
    assert found.rivals[0].time_ns > plan().decisions.rivals[0].time_ns


def test_other_gradients_need_another_plan() -> None:
    other = replace(STEP, gradient_order=("db",))
    with pytest.raises(InputError, match="the gradients have other names, sizes or another order than in the plan"):
        PASS.today(plan(), {**INPUTS, "trace": other})


def test_words_and_figures_are_those_of_the_decisions() -> None:
    decisions = plan().decisions
    assert PASS.describe(decisions) == "compression plan: compress nothing: 2 gradients in 1 group as they are"
    assert PASS.figures(decisions).time_ns == decisions.time_ns
    assert PASS.least_ns(decisions) == decisions.problem.forward_ns + decisions.problem.backward_ns
    assert PASS.nodes(decisions, HOSTS) == 2
