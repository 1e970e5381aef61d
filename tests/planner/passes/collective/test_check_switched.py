"""The checker of what switches do: it accepts the method's plans and names every fault that is put into one."""

from __future__ import annotations

import pytest
from msgspec import json
from msgspec.structs import replace

from tests.planner.passes.collective.build import MESH, in_network, switch
from treadle.planner.passes.collective.algorithm import CollectiveDecisions, SwitchStep, Transfer
from treadle.planner.passes.collective.check import check, check_against_inputs
from treadle.planner.passes.collective.decisions import decisions_of
from treadle.planner.passes.collective.differences import collective_differences
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.nvls import synthesize
from treadle.planner.passes.collective.retime import retimed, timed_on
from treadle.planner.passes.collective.synthesis import Request

RANKS = 3


def good(collective="allreduce", size=1536, hardware=None) -> CollectiveDecisions:
    return decisions_of(
        synthesize(Request(collective, hardware or in_network(RANKS), MESH, size), Effort()), None, None
    )


PLAN = good()
"""One piece: rank r reads the sum of chunk r from 0 to 1012 ns (4 ns a chunk, three at once), then multicasts it."""


def changed(index: int, **fields) -> CollectiveDecisions:
    steps = list(PLAN.switched)
    steps[index] = replace(steps[index], **fields)
    return replace(PLAN, switched=tuple(steps))


def test_the_plan_is_as_described():
    assert PLAN.switched[0] == SwitchStep(0, 0, "reduce", "fabric", 0, 1012)
    assert PLAN.switched[3] == SwitchStep(0, 0, "multicast", "fabric", 1012, 2024)
    assert check(PLAN) == []


LATE = replace(PLAN, makespan_ns=2025, switched=(*PLAN.switched[:-1], replace(PLAN.switched[-1], end_ns=2025)))
ALONE = SwitchStep(0, 0, "reduce", "fabric", 2024, 3028)


@pytest.mark.parametrize(
    ("plan", "finding"),
    [
        (changed(0, switch="other"), "switched[0] (chunk 0, reduce by 0): no switch other"),
        (changed(0, chunk=3), "found chunk 3, expected one below 3"),
        (changed(0, end_ns=1003), "takes 1003 ns, expected at least 1004 = 1000 + 4"),
        (changed(0, end_ns=1004), "port fabric rank 1 out: more than its rate, 1.333 times as much at 0 ns"),
        (changed(3, start_ns=1011), "chunk 0 at rank 0: switched[0] and switched[3] are at it at once"),
        (changed(0, rank=1), "sent on as final without the contributions of [1, 2]"),
        (replace(PLAN, switched=PLAN.switched[1:]), "multicast by 0): sent on as final without the contributions of"),
        (replace(PLAN, switched=PLAN.switched[:-1]), "chunk 2 at rank 0 lacks the contributions of [1, 2]"),
        (
            replace(PLAN, switched=(*PLAN.switched, ALONE), makespan_ns=3028),
            "switched[6] (chunk 0, reduce by 0): adds the contributions of [0, 1, 2] a second time",
        ),
        (
            replace(PLAN, switched=(*PLAN.switched, replace(ALONE, op="multicast")), makespan_ns=3028),
            "rank 1 holds chunk 0 already",
        ),
        (replace(PLAN, makespan_ns=1), "makespan_ns: found 1, the last step ends at 2024"),
        (replace(PLAN, switches=(replace(PLAN.switches[0], members=(0, 1)),)), "rank 2 is not on switch fabric"),
        (replace(PLAN, switches=(replace(PLAN.switches[0], in_network=("reduce",)),)), "does not multicast"),
        (replace(PLAN, switches=PLAN.switches * 2), "switches: fabric 2 times"),
        (replace(PLAN, protocol="LL"), "found LL x 1, expected Simple x 1"),
        (replace(PLAN, transfers=(Transfer(0, 0, 1, 0, 1004, 0),)), "6 steps and 1 transfers, expected only one kind"),
    ],
)
def test_faults_are_named(plan, finding):
    assert any(finding in each for each in check(plan)), check(plan)


def test_slower_than_the_ports_allow_is_fine():
    assert check(LATE) == []


def test_nothing_is_added_up_or_read_before_it_is_there():
    plan = good("allgather")
    assert check(plan) == []
    found = check(replace(plan, switched=(replace(plan.switched[0], rank=1), *plan.switched[1:])))
    assert any("starts at 0, before rank 1 holds chunk 0" in each for each in found)
    found = check(replace(plan, switched=(replace(plan.switched[0], op="reduce"), *plan.switched[1:])))
    assert any("reduces in allgather, which adds nothing up" in each for each in found)


def test_ranges_of_a_document():
    bad = replace(PLAN, switches=(replace(PLAN.switches[0], members=(0, 0)),))
    assert [each[0] for each in bad.problems()] == ["$.decisions.switches[0].members"]
    assert [each[0] for each in changed(0, rank=9).problems()] == ["$.decisions.switched[0]"]


def test_a_plan_of_messages_says_nothing_of_switches():
    found = json.decode(json.encode(replace(PLAN, switches=(), switched=())))
    assert not {"switches", "switched"} & found.keys()


def test_inputs_that_changed_are_named():
    assert check_against_inputs(PLAN, in_network(RANKS), MESH) == []
    assert "switch fabric: not among those the inputs give" in check_against_inputs(PLAN, switch(RANKS), MESH)
    dearer = check_against_inputs(PLAN, in_network(RANKS, beta=16), MESH)
    assert "switch fabric, beta_ns: found 4, the inputs give 8" in dearer


def test_times_at_other_sizes_and_costs():
    # 12 ns for the three parts at full rate, twice, and two alphas; 16 us/MiB doubles the first.
    at, problem = retimed(PLAN, in_network(RANKS), MESH).at(3072)
    assert (at, problem.chunk_bytes) == (2 * 3 * 8 + 2000, 1024)
    again = timed_on(PLAN, in_network(RANKS, beta=16), MESH)
    assert (again.makespan_ns, check(again)) == (2048, [])


def test_two_plans_differ_in_their_steps():
    assert collective_differences(PLAN, PLAN) == []
    (found,) = collective_differences(PLAN, LATE)
    assert (found.what, found.how) == ("switched", "6 -> 6 steps, 2 of them in one plan only")
