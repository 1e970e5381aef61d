"""Orders of hosts against their inputs of today, bounds derived again, differences in words; measured costs as
problems."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.planner.passes.ranks.instances import planted
from tests.planner.samples import RANKS_PLAN
from treadle.planner.documents.cost_matrix import CostHost, CostMatrix, PairRate
from treadle.planner.errors import InputError
from treadle.planner.passes.ranks import extract
from treadle.planner.passes.ranks.extract import DEFAULT_BYTES, bcube_factors, problem_of
from treadle.planner.passes.ranks.planning import plan_ranks
from treadle.planner.passes.ranks.problem import RanksProblem
from treadle.planner.passes.ranks.room import PASS

pytestmark = pytest.mark.usefixtures("few_steps")


def costs(seed: int = 1, *, rates: bool = False, spoilt: bool = False) -> CostMatrix:
    """Six hosts in two racks; spoilt: one direction is missing."""
    found = planted(6, 2, seed)
    latency = [[float(us) for us in row] for row in found]
    rows: list[tuple[float | None, ...]] = [tuple(row) for row in latency]
    if spoilt:
        rows[0] = (0.0, None, *rows[0][2:])
    return CostMatrix(
        version=1,
        name="six",
        hosts=tuple(CostHost(name=f"n{place}") for place in range(6)),
        latency_us=tuple(rows),
        rates=tuple(PairRate(i, j, 1e12 / found[i][j]) for i in range(6) for j in range(i)) if rates else (),
    )


PLAN = plan_ranks(problem_of(costs(), "ring"))


def test_a_plan_is_compared_with_the_costs_of_today() -> None:
    assert PASS.check_inputs(PLAN, {"costs": costs()}) == []
    assert PASS.check_inputs(PLAN, {}) == []
    assert PASS.check_inputs(PLAN, {"problem": PLAN.decisions.problem}) == []
    (finding,) = PASS.check_inputs(PLAN, {"costs": costs(2)})
    assert finding == "$.decisions.problem.latency_ns: not what the inputs say now; plan again"


def test_costs_that_were_mended_for_the_plan_are_mended_alike() -> None:
    given = costs(spoilt=True)
    with pytest.raises(InputError, match="found one direction only of 1 pair of hosts"):
        problem_of(given, "ring")
    mended = plan_ranks(problem_of(given, "ring", repair="mean"))
    assert PASS.check_inputs(mended, {"costs": given}) == []


def test_costs_that_are_those_of_the_plan_are_not_mended_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of hundreds of hosts take many seconds to find."""
    made = []

    def counted(*given: Any, **options: Any) -> RanksProblem:
        made.append(options["repair"])
        return problem_of(*given, **options)

    monkeypatch.setattr(extract, "problem_of", counted)
    assert PASS.check_inputs(PLAN, {"costs": costs()}) == []
    assert made == [None]


def test_the_order_has_the_costs_of_today_if_the_hosts_are_the_same() -> None:
    now = PASS.today(PLAN, {"costs": costs(2)})
    assert now is not None
    assert now.order == PLAN.decisions.order
    assert now.cost_ns > PLAN.decisions.cost_ns
    assert PASS.today(PLAN, {}) is None
    other = costs()
    renamed = replace(other, hosts=(CostHost(name="new"), *other.hosts[1:]))
    with pytest.raises(InputError, match="the hosts have other names or slots, or another order, than in the plan"):
        PASS.today(PLAN, {"costs": renamed})


def test_a_bound_is_derived_again_and_one_that_claims_more_is_found() -> None:
    again = PASS.rebound(PLAN, {})
    assert again.findings == []
    assert again.bound_ns is not None
    assert 0 < again.bound_ns <= PLAN.decisions.cost_ns
    proof = replace(PLAN.certificate, argument="so it is", lower_bound=again.bound_ns + 1)
    (finding,) = PASS.rebound(replace(PLAN, certificate=proof), {}).findings
    assert finding.endswith(f"the problem proves only {again.bound_ns} ns")


def test_differences_name_places_and_costs() -> None:
    before = PLAN.decisions
    after = replace(before, order=before.order[::-1], cost_ns=2 * before.cost_ns)
    found = [str(change) for change in PASS.differences(before, after)]
    assert found[0].startswith("order: 6 places with another host, first place 0: n")
    assert "(+100.00%)" in found[1]
    assert PASS.differences(before, before) == []


def test_the_certificate_is_of_the_objective_and_the_prediction_of_an_allreduce() -> None:
    plan = plan_ranks(problem_of(costs(rates=True), "ring"))
    assert plan.certificate.objective == PASS.figures(plan.decisions).time_ns == plan.decisions.cost_ns
    assert PASS.times_us(plan) == (plan.prediction.time_us,) == (plan.decisions.time_ns / 1000,)
    assert PASS.describe(RANKS_PLAN.decisions) == "order of 2 hosts for plan"


def test_a_collective_has_a_size_by_default_where_rates_are_known() -> None:
    assert problem_of(costs(), "tree").size_bytes == 0
    assert problem_of(costs(rates=True), "tree").size_bytes == DEFAULT_BYTES == 2**26
    assert problem_of(costs(rates=True), "tree", size_bytes=5).size_bytes == 5


def test_bcube_has_groups_of_four_as_far_as_they_divide_the_hosts() -> None:
    assert bcube_factors(512) == (4, 4, 4, 4, 2)
    assert bcube_factors(18) == (3, 3, 2)
    assert bcube_factors(64, (8,)) == (8, 8)
    assert bcube_factors(512, (4, 4, 32)) == (4, 4, 32)
    assert bcube_factors(7, (7,)) == (7,)
    assert bcube_factors(1) == ()
    for count, given, message in (
        (512, (4, 4, 4), r"found 4 \* 4 \* 4, expected numbers above 1 whose product is 512"),
        (4, (4, 1), "expected numbers above 1"),
        (14, (), "groups of at most 4 do not divide, expected factors such as --factors 2,7"),
    ):
        with pytest.raises(InputError, match=message):
            bcube_factors(count, given)
