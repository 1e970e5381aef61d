"""Where the planner's own code is broken, makes wrong schedules and finds them sound, the checker refuses them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import pytest

from tests.planner.passes.fusion.test_check import EXAMPLES, decided, program
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.store import load
from treadle.planner.machine.collectives import Algorithm
from treadle.planner.machine.rates import CHANNELS
from treadle.planner.passes.fusion import check_stages, explanations, transform_calls
from treadle.planner.passes.fusion.check import check
from treadle.planner.passes.fusion.consistency import inconsistent
from treadle.planner.passes.fusion.decisions import TransformCall
from treadle.planner.passes.fusion.program import Bindings, Kernel, Node, Program
from treadle.planner.passes.fusion.ranking import FusionProblem, rank_schedules
from treadle.planner.passes.fusion.transform_calls import replay
from treadle.planner.passes.fusion.transforms.editing import Rewrite

Edit = Callable[[Program], Program]


def nodes(edit: Callable[[Node], Node]) -> Edit:
    return lambda made: replace(made, nodes=tuple(map(edit, made.nodes)))


def combined(node: Node) -> Node:
    wrong = tuple({**dict(node.attributes), "op": "max"}.items())
    return replace(node, attributes=wrong) if node.op == "ReduceScatter" else node


def swapped(node: Node) -> Node:
    return replace(node, inputs=node.inputs[::-1]) if node.op in ("Sub", "Div") else node


def fused(made: Program) -> Program:
    return replace(made, kernels=(Kernel("k", "ComputationFuse", ("rs", "ag")),))


SPLIT = TransformCall(transform="split", arguments={"ar": "sum_", "policy": "ARSplitRSAG"})
WRONG: dict[str, tuple[str, Edit, str]] = {
    "a sum that becomes a maximum": ("attention", nodes(combined), "is not the program's"),
    "operands in the wrong order": ("adam", nodes(swapped), "is not the program's"),
    "a kernel of what is no computation": ("sgd", fused, "kernel k: ComputationFuse with ReduceScatter"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_broken_transformation_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, edit, finding = WRONG[what]
    right = transform_calls.TRANSFORMS["split"]

    def split(whole: Program, ar: str, policy: str) -> Rewrite:
        made = right(whole, ar, policy)
        return replace(made, program=edit(made.program))

    monkeypatch.setitem(transform_calls.TRANSFORMS, "split", split)
    transform_calls._types.cache_clear()
    original = program(name)
    decisions = decided(original, replay(original, (SPLIT,)), (SPLIT,))
    assert any(finding in each for each in check(decisions)), check(decisions)
    assert list(inconsistent(decisions)) == []
    transform_calls._types.cache_clear()


def test_a_price_that_loses_time_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = load(EXAMPLES.parents[1] / "profiles" / "switch4.yaml", Hardware)
    plan = rank_schedules(FusionProblem(program("sgd"), Bindings({"N": 4096}, 4), machine))
    assert check(explanations.decisions(plan)) == []
    monkeypatch.setattr(explanations, "nanoseconds", lambda us: 0 if us > 1 else 1)
    assert any(each.startswith("time: ") for each in check(explanations.decisions(plan)))


def test_the_checker_knows_the_algorithms_that_are_priced() -> None:
    assert (get_args(Algorithm), CHANNELS) == (check_stages.ALGORITHMS, check_stages.MOST_CHANNELS)
