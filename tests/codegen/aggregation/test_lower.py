"""Aggregation plans as collectives: right, with the messages of the method, and timed without false waits."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.planner.passes.aggregation.aggregation_plans import (
    ACROSS_NS,
    INSIDE_NS,
    RACKS,
    Groups,
    decisions_on,
    problem_on,
    small_plan,
)
from treadle.codegen.aggregation.lower import collective_of
from treadle.codegen.collective.check import check as check_program
from treadle.codegen.collective.expected import expected_outputs
from treadle.codegen.collective.lower import lower
from treadle.codegen.targets import generate, targets_of
from treadle.planner.passes.collective.check import check

SHAPES: dict[str, tuple[Groups, int, int]] = {
    "two racks": (RACKS, 4, 1),
    "one level": (((0, 1, 2, 3),), 4, 1),
    "uneven groups": (((0, 2, 4), (1, 3)), 10, 1),
    "hosts of their own": (((0,), (1,), (2,)), 3, 1),
    "three ranks on each host": (RACKS, 6, 3),
    "one host": (((0,),), 2, 1),
    "one host of two ranks": (((0,),), 2, 2),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_checkers_of_plans_and_of_programs_accept_it(shape: str) -> None:
    groups, chunks, slots = SHAPES[shape]
    plan = collective_of(decisions_on(problem_on(groups, slots=slots, size_bytes=999), groups, chunks))
    assert check(plan) == []
    for inplace in (False, True):
        assert check_program(lower(plan, inplace=inplace), expected=expected_outputs(plan)) == []


def test_its_roots_and_messages_are_those_of_the_masters() -> None:
    decisions = decisions_on(problem_on(RACKS), RACKS, 4)
    plan = collective_of(decisions)
    assert plan.roots == tuple(chunk.top for chunk in decisions.chunks)
    sent = Counter((move.chunk, move.reduce) for move in plan.transfers)
    assert set(sent.values()) == {3}  # of each chunk n - 1 towards its master, and n - 1 back
    across = [move for move in plan.transfers if (move.src < 2) != (move.dst < 2)]
    assert len(across) * plan.chunk_bytes == decisions.across_bytes
    assert len(plan.transfers) * plan.chunk_bytes == decisions.total_bytes


def test_each_rank_of_a_host_stands_for_it_in_every_so_many_th_chunk() -> None:
    plan = collective_of(decisions_on(problem_on(RACKS, slots=2), RACKS, 4))
    assert [root % 2 for root in plan.roots or ()] == [0, 1, 0, 1]
    between = {(move.src % 2, move.dst % 2) for move in plan.transfers if move.src // 2 != move.dst // 2}
    assert between == {(0, 0), (1, 1)}


def test_links_nics_and_uplinks_cost_what_was_measured() -> None:
    plan = collective_of(decisions_on(problem_on(RACKS, size_bytes=1 << 22), RACKS, 4))
    links = {(link.src, link.dst): (link.alpha_ns, link.beta_ns) for link in plan.links}
    assert links[0, 1] == (20_000, INSIDE_NS)
    assert links[0, 2] == (50_000, ACROSS_NS)
    ports = {port.name: port.beta_ns for port in plan.ports}
    assert ports["nic 0 out"] == INSIDE_NS
    assert ports["uplink 0 out"] == ports["uplink 1 in"] == ACROSS_NS // 2


def test_sums_of_other_groups_do_not_wait_for_those_of_the_masters_own() -> None:
    """One chunk, its global master in a slow group: the other group's sum is there before the last own member's."""
    groups: Groups = ((0, 1, 2, 3), (4,))
    plan = collective_of(decisions_on(problem_on(groups, size_bytes=1 << 20), groups, 1))
    assert plan.roots == (0,)
    sums = {move.src: move for move in plan.transfers if move.reduce}
    other, members = sums.pop(4), sorted(move.send_ns for move in sums.values())
    assert other.send_ns < members[-1] or other.send_ns == 0
    back = [move for move in plan.transfers if not move.reduce]
    complete = max(move.arrive_ns for move in (other, *sums.values()))
    assert min(move.send_ns for move in back) == complete


def test_plans_go_into_every_target_of_collectives() -> None:
    plan = small_plan()
    names = {target.name: generate(plan, "plan.json", target=target.name) for target in targets_of(plan).targets}
    assert names.keys() == {"msccl-xml", "mscclpp-json", "cuda"}
    assert names["msccl-xml"].facts["collective"] == "allreduce"
    assert all("plan.json" in made.files for made in names.values())


def test_its_timeline_has_the_bytes_that_cross_between_groups() -> None:
    plan = small_plan()
    found = targets_of(plan).timeline(plan)
    decisions = plan.decisions
    busy = found.busy_ns()
    assert busy["port uplink 0 out"] == decisions.across_bytes // 2 * (ACROSS_NS // 2) // 2**20
    assert decisions.time_ns < found.schedule.makespan <= 1.5 * decisions.time_ns
