"""Sparse plans: the cheapest allowed scheme, prices worked by hand, bounds."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.planner.passes.sparse.problems import INTER, gradient, problem_with
from treadle.codegen.sparse.room import ROOM
from treadle.planner.documents import store
from treadle.planner.documents.sparse_costs import SparseWork
from treadle.planner.errors import InputError
from treadle.planner.passes.sparse.decided import cost_of
from treadle.planner.passes.sparse.planning import SparseOptions, plan_sparse
from treadle.planner.passes.sparse.problem import BlockCounts, SparseProblem
from treadle.planner.passes.sparse.schemes import BY_NAME, SCHEMES

WORK = SparseWork(
    scan_per_value=0.1,
    coalesce_per_entry=6.0,
    coalesce_per_value=0.7,
    hash_per_index=3.5,
    extract_per_word=0.3,
    gather_per_entry=3.0,
    gather_per_value=0.2,
    add_per_entry=5.0,
    add_per_value=0.4,
    bitmap_per_unit=0.05,
    write_per_entry=2.5,
    write_per_value=0.15,
    call=2000,
)
ANY = SparseOptions(any_order=True)
WIDE = replace(
    gradient((100, 160), 10_000, width=4, unit="row", occurrences=130, even=(70, 110), hashed=(60, 95), densest=120),
    blocks=BlockCounts(size=8, push=40, pull=60),
)


def test_zen_between_two_nodes_costs_what_is_worked_by_hand() -> None:
    plan = plan_sparse(problem_with(WIDE, work=WORK)).decisions.gradients[0]
    cost = cost_of(plan, "zen")
    part = 5084  # 10,000 / 2, and sqrt(2 * 5,000 ln 2) = 83.3 more
    assert cost.bytes == (4 + 60 * 20) + (4 * 159 + 95 * 16)
    link = 1000 * (30 * 4 + 839 * Fraction(cost.bytes, 2**20))
    assert cost.link_ns == int(link + Fraction(1, 2))
    coalesce, hashed, gather = (6 + 0.7 * 4) * 130, 3.5 * 100 + 0.3 * (120 + 12) * 2, (3 + 0.2 * 4) * 100
    add, bits, write, calls = (5 + 0.4 * 4) * 2 * 60, 0.05 * (part + 10_000), (2.5 + 0.15 * 4) * 160, 2 * 2000
    work = coalesce + hashed + gather + add + bits + write + calls
    assert cost.time_ns - cost.link_ns == round(work)


@pytest.mark.parametrize("form", ["coo", "dense"])
def test_values_of_dense_messages_take_no_rates_for_entries(form) -> None:
    given = replace(WIDE, form=form, occurrences=100)
    plan = plan_sparse(problem_with(given, work=WORK)).decisions.gradients[0]
    cost = cost_of(plan, "dense")
    add, calls = 0.4 * 10_000 * 4, 2 * 2000
    write = 0.15 * 10_000 * 4
    if form == "coo":
        # Its entries are made dense, and those of the sum found and written again.
        coalesce, scan = (6 + 0.7 * 4) * 100, 0.1 * 10_000 * 4
        write += coalesce + 2.5 * 100 + scan + (2.5 + 0.15 * 4) * 160
    assert cost.time_ns - cost.link_ns == round(add + write + calls)


def test_nodes_of_several_ranks_sum_inside_first_and_share_their_link() -> None:
    one = gradient((100, 160), 20_000, form="dense", occurrences=100)
    alone, shared = (plan_sparse(problem_with(one, devices=devices)) for devices in (1, 2))
    dense = [cost_of(plan.decisions.gradients[0], "dense") for plan in (alone, shared)]
    assert dense[1].bytes == dense[0].bytes / 2
    assert abs(dense[1].link_ns - dense[0].link_ns) <= 1
    inside = 2000 * (1 + 42 * Fraction(20_000 * 4 // 2, 2**20))
    assert dense[1].time_ns - dense[1].link_ns == round(inside)


def test_without_any_cost_everything_is_a_tie_that_dense_wins() -> None:
    free = replace(INTER, alpha_us=0, beta_us_per_MB=0)
    plan = plan_sparse(replace(problem_with(WIDE, gradient((0, 0), 9, name="idle")), inter=free))
    assert [each.scheme for each in plan.decisions.gradients] == ["dense", "dense"]
    assert plan.decisions.time_ns == plan.decisions.dense_ns == 0
    assert plan.certificate.optimal


def test_every_participant_receives_what_is_not_zero_in_the_sum_of_the_others() -> None:
    """Seven of eight values: four participants with 4 of 16 elements each, of which any three have 7."""
    byte_a_ns = replace(INTER, alpha_us=0, beta_us_per_MB=2**20 / 1000)
    problem = replace(problem_with(gradient((4, 6, 7, 8), 16)), inter=byte_a_ns)
    assert plan_sparse(problem).certificate.lower_bound == 4 * 7


def test_one_node_sends_nothing() -> None:
    plan = plan_sparse(problem_with(gradient((5,), 100), work=WORK))
    assert plan.decisions.time_ns == 0
    assert plan.decisions.gradients[0].favours == "tie"


def test_schemes_of_blocks_need_counts_of_blocks() -> None:
    names = [
        [cost.scheme for cost in plan.costs]
        for plan in plan_sparse(problem_with(WIDE, replace(WIDE, name="other", blocks=None))).decisions.gradients
    ]
    assert names[0] == [scheme.name for scheme in SCHEMES]
    assert names[1] == [name for name in names[0] if name != "omnireduce"]


@st.composite
def problems(draw: st.DrawFn) -> SparseProblem:
    """Between 2 and 9 nodes, of 1 or 2 ranks."""
    n, devices = draw(st.integers(2, 9)), draw(st.integers(1, 2))
    unions = [draw(st.integers(0, 10**5))]
    for m in range(1, n):
        unions.append(draw(st.integers(unions[-1], min(10**6, unions[0] * (m + 1)))))
    even, hashed = (tuple(draw(st.integers(-(-each // n), each)) for each in unions) for _ in range(2))
    form = draw(st.sampled_from(["coo", "dense"]))
    one = gradient(unions, devices * 10**6, even=even, hashed=hashed, form=form)
    return problem_with(one, devices=devices, work=draw(st.sampled_from([SparseWork(), WORK])))


@settings(max_examples=60, deadline=None)
@given(problems())
def test_plans_take_the_cheapest_scheme_whose_sums_are_allowed(problem: SparseProblem) -> None:
    n = problem.machines
    strict, free = plan_sparse(problem), plan_sparse(problem, options=ANY)
    for plan, orders in ((strict, {"worker"}), (free, {"worker", "tree", "ring"})):
        one = plan.decisions.gradients[0]
        times = {cost.scheme: cost.time_ns for cost in one.costs if BY_NAME[cost.scheme].order(n) in orders}
        assert plan.decisions.time_ns == times[one.scheme] == min(times.values())
        assert one.scheme == "dense" or times["dense"] > times[one.scheme]
        assert plan.certificate.lower_bound <= min(cost.time_ns for cost in one.costs)
        assert (one.memory is not None) == (BY_NAME[one.scheme].balance == "balanced")
        assert ROOM.timeline(plan).schedule.makespan == plan.decisions.time_ns
    assert free.decisions.time_ns <= strict.decisions.time_ns
    assert store.dumps(plan_sparse(problem)) == store.dumps(strict)


def test_problems_that_are_not_sound_are_refused() -> None:
    broken = problem_with(replace(WIDE, unions=(100, 90)))
    with pytest.raises(InputError, match=r"unions\[1\]: found 90, expected 100 to 200"):
        plan_sparse(broken)
