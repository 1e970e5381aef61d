"""Families of implementations on and off."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from tests.planner.passes.memory import cases
from tests.planner.passes.memory.dynamic import optimum
from tests.planner.passes.memory.formulation.test_checkpoint import CHOICES, solved
from tests.planner.passes.memory.strategies import problems
from treadle.planner.errors import InputError
from treadle.planner.passes.memory.problem import Backward, BackwardNode, Forward, MemoryProblem
from treadle.planner.passes.memory.variants import ALWAYS, FAMILIES, VARIANTS, allowed, restrict


def of_family(impl: Forward, family: str) -> Forward:
    return replace(impl, name=family, family=family)


def case_c(budget: int) -> MemoryProblem:
    """The fixture on operator choice, as one problem whose implementations say what they are."""
    whole = cases.c(budget, conv=True, out=True, intermediate=True)
    fwd = [
        replace(node, impls=tuple(of_family(impl, "conv") if way else impl for way, impl in enumerate(node.impls)))
        for node in whole.fwd
    ]
    bwd = []
    for k, node in enumerate(whole.bwd):
        named = {2: ["", "int"], 3: ["", "out", "int"]}.get(k, ["", "conv"])
        impls = zip(named, node.impls, strict=False)
        bwd.append(replace(node, impls=tuple(of_family(impl, name) if name else impl for name, impl in impls)))
    return replace(whole, fwd=tuple(fwd), bwd=tuple(bwd))


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_are_the_fixtures_of_operator_choice(variant):
    options, optima = CHOICES[variant]
    for budget, expected in optima.items():
        small = restrict(case_c(budget), VARIANTS[variant])
        by_hand = cases.c(budget, **options)
        assert [node.out_bytes for node in small.fwd] == [node.out_bytes for node in by_hand.fwd]
        assert [node.inputs for node in small.fwd] == [node.inputs for node in by_hand.fwd]
        assert [[impl.needs for impl in node.impls] for node in small.bwd] == [
            [impl.needs for impl in node.impls] for node in by_hand.bwd
        ]
        assert solved(small) == (expected[0] if isinstance(expected, tuple) else expected)


def test_in_place_is_always_on_unless_switched_off():
    assert all(ALWAYS <= families <= set(FAMILIES) for families in VARIANTS.values())
    assert restrict(cases.d(12), VARIANTS["noop"]) == cases.d(12)
    assert restrict(cases.d(12), {"statistics"}) == cases.d(12, inplace=False)
    saving = replace(cases.d(12).fwd[1], inplace_saves_ns=1)
    problem = replace(cases.d(12), fwd=(cases.d(12).fwd[0], saving, *cases.d(12).fwd[2:]))
    assert restrict(problem, ()).fwd[1].inplace_saves_ns == 0
    assert restrict(problem, {"inplace"}).fwd[1].inplace_saves_ns == 1


def test_without_statistics_a_repeated_run_costs_what_the_first_did():
    node = replace(cases.a(6).fwd[1], impls=(Forward(time_ns=5, recompute_time_ns=2, recompute_workspace_bytes=1),))
    problem = replace(cases.a(6), fwd=(cases.a(6).fwd[0], node, *cases.a(6).fwd[2:]))
    assert restrict(problem, {"statistics"}).fwd[1].impls == node.impls
    assert restrict(problem, ()).fwd[1].impls == (Forward(time_ns=5),)


def test_without_recomputation_choices_alone_must_do():
    assert solved(restrict(cases.a(9), ())) == 13
    assert solved(restrict(cases.a(9), (), recompute=False)) is None
    assert solved(restrict(cases.a(10), (), recompute=False)) == 12
    assert not any(node.recomputable for node in restrict(cases.a(9), (), recompute=False).fwd)


@pytest.mark.parametrize(
    ("family", "families", "expected"),
    [
        ("", (), True),
        ("int", ("int",), True),
        ("int", ("in", "t"), False),
        ("int+grad-inplace", ("int",), False),
        ("int+grad-inplace", ("grad-inplace",), False),
        ("int+grad-inplace", ("grad-inplace", "int"), True),
    ],
)
def test_an_implementation_of_two_families_needs_both(family, families, expected):
    assert allowed(family, families) is expected


def test_a_node_without_any_implementation_left_is_an_error():
    problem = replace(
        cases.a(6), bwd=(BackwardNode(op="b", out_grad_bytes=0, live_grad_bytes=0, impls=(Backward(family="int"),)),)
    )
    with pytest.raises(InputError, match=r"\$.bwd\[0\].impls: found implementations of int only"):
        restrict(problem, VARIANTS["out"])


def test_nodes_behind_a_gone_intermediate_are_numbered_anew():
    small = restrict(case_c(52), VARIANTS["noop"])
    assert [(node.kind, node.inputs) for node in small.fwd] == [("op", ()), ("op", (0,)), ("op", (1,)), ("op", (2,))]
    assert small.bwd[2].impls[0].needs == (1,)
    half = restrict(case_c(52), {"int"})
    assert [(node.creator, node.inputs) for node in half.fwd if node.kind == "intermediate"] == [(1, (1,)), (3, (3,))]


@given(problems())
@settings(max_examples=25)
def test_everything_on_changes_nothing_and_less_is_never_faster(problem):
    whole = restrict(problem, FAMILIES)
    assert [len(node.impls) for node in whole.bwd] == [len(node.impls) for node in problem.bwd]
    least, best = optimum(restrict(problem, (), recompute=False)), optimum(problem)
    assert optimum(whole) == best
    assert least is None or (best is not None and best <= least)
