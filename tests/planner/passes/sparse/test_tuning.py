"""Schemes of which the cheapest are measured: what is taken, what is recorded, and what the checker makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from tests.planner.passes.sparse.problems import gradient, problem_with
from treadle.check.plan import check_plan
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.sparse.decided import by_schemes
from treadle.planner.passes.sparse.decisions import SparseDecisions
from treadle.planner.passes.sparse.planning import SparseOptions, plan_sparse
from treadle.planner.passes.sparse.problem import SparseProblem
from treadle.planner.search.in_turns import Measuring
from treadle.planner.search.top import Outcome

Rows = Sequence[Sequence[SparseDecisions]]
ONE = gradient((1000, 1900, 2700, 3400), 1_000_000, name="one")
OTHER = gradient((200, 390, 570, 700), 50_000, name="other")


def problem() -> SparseProblem:
    return problem_with(ONE, OTHER)


class Machine:
    """`isolated` is the ns of a scheme, `together` that of all gradients; keeps the schemes that it was asked for."""

    def __init__(self, isolated: Callable[[str], float], together: Callable[[tuple[str, ...]], float]) -> None:
        self.isolated, self.together = isolated, together
        self.asked: list[list[list[tuple[str, ...]]]] = []

    def __call__(self, rows: Rows) -> list[dict[int, Outcome]]:
        schemes = [[tuple(each.scheme for each in plan.gradients) for plan in row] for row in rows]
        self.asked.append(schemes)
        return [{at: Outcome(self.time_of(one)) for at, one in enumerate(row)} for row in schemes]

    def time_of(self, schemes: tuple[str, ...]) -> float:
        return self.isolated(schemes[0]) if len(schemes) == 1 else self.together(schemes)


def by_rank(name: str) -> float:
    return 1.0 if name == "zen" else 2.0


def test_each_gradient_is_measured_in_isolation_and_then_all_together() -> None:
    machine = Machine(by_rank, lambda schemes: 10 - schemes.count("zen"))
    plan = plan_sparse(problem(), options=SparseOptions(measuring=Measuring(18, machine)))
    isolated, together = machine.asked
    assert {len(row) for row in isolated[0]} == {1}
    assert [each.scheme for each in plan.decisions.gradients] == ["zen", "zen"]
    assert [each.what for each in plan.provenance.tuned][:2] == ["scheme of one", "scheme of other"]
    assert plan.provenance.tuned[2].what == "schemes of all gradients"
    assert len(together) == 1
    assert plan.decisions.measured
    assert check_plan(plan) == []
    assert check_plan(store.loads(store.dumps(plan), "plan", Plan)) == []


def test_as_many_as_asked_for_are_measured_of_each_gradient() -> None:
    machine = Machine(by_rank, lambda schemes: 1)
    plan = plan_sparse(problem(), options=SparseOptions(measuring=Measuring(4, machine)))
    assert [len(row) for row in machine.asked[0]] == [4, 4]
    assert check_plan(plan) == []


def test_a_mix_that_is_slower_together_is_not_taken() -> None:
    dense = ("dense", "dense")
    plan = plan_sparse(
        problem(),
        options=SparseOptions(measuring=Measuring(18, Machine(by_rank, lambda schemes: 1 if schemes == dense else 2))),
    )
    assert tuple(each.scheme for each in plan.decisions.gradients) == dense
    assert plan.provenance.tuned[-1].chosen == "all dense"
    assert check_plan(plan) == []


def test_a_single_gradient_is_measured_once() -> None:
    machine = Machine(by_rank, lambda schemes: 1)
    plan = plan_sparse(problem_with(ONE), options=SparseOptions(measuring=Measuring(18, machine)))
    assert len(machine.asked) == 1
    assert plan.decisions.gradients[0].scheme == "zen"
    assert check_plan(plan) == []


def test_in_isolation_a_gradient_pays_for_its_messages_on_its_own() -> None:
    plan = plan_sparse(problem(), options=SparseOptions(measuring=Measuring(2, Machine(by_rank, lambda schemes: 1))))
    single = plan_sparse(problem_with(ONE))
    costs = {each.scheme: each.time_ns for each in single.decisions.gradients[0].costs}
    for each in plan.provenance.tuned[0].ranked:
        assert each.predicted_ns == costs[each.name]


def test_of_schemes_with_the_same_messages_one_is_measured() -> None:
    """Between two participants a hierarchy and a ring are one exchange."""
    machine = Machine(by_rank, lambda schemes: 1)
    plan = plan_sparse(problem_with(gradient((60, 100), 1000)), options=SparseOptions(measuring=Measuring(18, machine)))
    names = [each.name for each in plan.provenance.tuned[0].ranked]
    assert "agsparse" in names
    assert "ring-one-shot-centralized" not in names


@pytest.mark.parametrize("after", [0, 1], ids=["in isolation", "all together"])
def test_ctrl_c_while_schemes_are_measured_leaves_the_cheapest(after: int) -> None:
    machine = Machine(by_rank, lambda schemes: 1)

    def interrupted(rows: Rows) -> list[dict[int, Outcome]]:
        if len(machine.asked) == after:
            raise KeyboardInterrupt
        return machine(rows)

    plan = plan_sparse(problem(), options=SparseOptions(measuring=Measuring(4, interrupted)))
    assert (plan.provenance.interrupted, plan.provenance.tuned) == (True, ())
    assert plan.decisions == plan_sparse(problem()).decisions
    assert check_plan(plan) == []


def test_without_measuring_a_plan_says_nothing_of_it() -> None:
    text = store.dumps(plan_sparse(problem()))
    assert "measured" not in text
    assert "tuned" not in text


def changed_scheme(plan: Plan[SparseDecisions]) -> Plan[SparseDecisions]:
    decisions = plan.decisions
    return replace(plan, decisions=by_schemes(decisions, ["dense", *(each.scheme for each in decisions.gradients[1:])]))


def unrecorded(plan: Plan[SparseDecisions]) -> Plan[SparseDecisions]:
    return replace(plan, provenance=replace(plan.provenance, tuned=()))


def unsaid(plan: Plan[SparseDecisions]) -> Plan[SparseDecisions]:
    return replace(plan, decisions=replace(plan.decisions, measured=False))


def without_one(plan: Plan[SparseDecisions]) -> Plan[SparseDecisions]:
    return replace(plan, provenance=replace(plan.provenance, tuned=plan.provenance.tuned[1:]))


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (changed_scheme, "$.decisions.gradients[0].scheme: found dense, expected zen"),
        (unrecorded, "$.decisions.measured: found true, and no record of it"),
        (unsaid, "$.decisions.measured: found false, and records of measurements"),
        (without_one, "$.decisions.gradients[0].scheme: found zen, expected a record of what was measured of one"),
    ],
)
def test_schemes_that_the_records_did_not_choose_are_found(
    change: Callable[[Plan[SparseDecisions]], Plan[SparseDecisions]], finding: str
) -> None:
    plan = plan_sparse(
        problem(),
        options=SparseOptions(measuring=Measuring(18, Machine(by_rank, lambda schemes: 10 - schemes.count("zen")))),
    )
    assert check_plan(plan) == []
    assert any(finding in each for each in check_plan(change(plan)))
