"""The pass as one function: which placement it takes, what it refuses, and that it says the same twice."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from benchmarks.checkpoint.papers import GPT2_100B
from tests.planner.passes.checkpoint.checkpoint_plans import PROBLEM
from treadle.planner.documents import store
from treadle.planner.errors import InfeasibleError, InputError
from treadle.planner.passes.checkpoint.decisions import Placing
from treadle.planner.passes.checkpoint.placement import published, ring
from treadle.planner.passes.checkpoint.planning import CheckpointOptions, plan_checkpoint

RACKS = tuple(machine // 4 for machine in range(16))


def test_groups_are_optimal_where_machines_divide_into_them() -> None:
    plan = plan_checkpoint(GPT2_100B)
    assert plan.decisions.placement == "groups"
    assert plan.decisions.holders == published(16, 2)[1]
    assert plan.certificate.optimal
    assert plan.decisions.host_bytes == 2 * 2 * 8 * 9_400_000_000


@pytest.mark.parametrize(
    ("machines", "copies", "domains", "placement"),
    [(5, 2, (), "groups and ring"), (5, 3, (), "searched"), (16, 2, RACKS, "searched"), (16, 2, (0,) * 16, "groups")],
)
def test_another_placement_is_taken_only_where_it_survives_more(
    machines: int, copies: int, domains: tuple[int, ...], placement: Placing
) -> None:
    problem = replace(PROBLEM, machines=machines, copies=copies, domains=domains)
    assert plan_checkpoint(problem).decisions.placement == placement


def test_a_ring_of_all_is_made_where_it_is_asked_for() -> None:
    plan = plan_checkpoint(PROBLEM, options=CheckpointOptions(placement="ring"))
    assert plan.decisions.holders == ring(5, 2)
    assert plan.provenance.options["placement"] == "ring"


def test_groups_alone_are_refused_where_machines_are_left_over() -> None:
    with pytest.raises(InputError, match=r"groups of 2 leave 1 machine over; 'groups and ring'"):
        plan_checkpoint(PROBLEM, options=CheckpointOptions(placement="groups"))


def test_hosts_with_too_little_memory_are_refused_with_what_fits() -> None:
    with pytest.raises(InfeasibleError, match=r"need 48 B of each machine, which has 40 B; 1 copy would fit"):
        plan_checkpoint(replace(PROBLEM, host_bytes=40))
    with pytest.raises(InfeasibleError, match=r"not even its own would fit"):
        plan_checkpoint(replace(PROBLEM, host_bytes=20))
    assert plan_checkpoint(replace(PROBLEM, host_bytes=48)).decisions.host_bytes == 48


def test_a_problem_that_is_not_sound_is_refused() -> None:
    with pytest.raises(InputError, match=r"\$\.copies: found 6, expected at most 5"):
        plan_checkpoint(replace(PROBLEM, copies=6))


def test_what_is_late_is_paid_rarely_where_failures_are_rare() -> None:
    crowded = replace(PROBLEM, copies=3, failures_per_day=1e9)
    often = plan_checkpoint(crowded).decisions
    rarely = plan_checkpoint(replace(crowded, failures_per_day=1.0)).decisions
    assert often.overflow_ns == rarely.overflow_ns == 3
    assert rarely.every > often.every >= 1
    assert plan_checkpoint(crowded, options=CheckpointOptions(every=3)).decisions.every == 3


def test_the_same_problem_gives_the_same_bytes() -> None:
    problem = replace(PROBLEM, machines=9, copies=4, domains=(0, 0, 0, 1, 1, 1, 2, 2, 2))
    first, second = (store.dumps(plan_checkpoint(problem)) for _ in range(2))
    assert first == second


def test_plans_are_offered_once() -> None:
    offered = []
    plan = plan_checkpoint(PROBLEM, on_plan=offered.append)
    assert offered == [plan]
