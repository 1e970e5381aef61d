"""The example of docs/memory-problem.md is a problem file that does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from tests.oracles.exact_memory import optima
from treadle.planner.passes.memory.check import check
from treadle.planner.passes.memory.planning import plan_memory
from treadle.planner.passes.memory.problem import Backward, BackwardNode, Forward, ForwardNode, MemoryProblem
from treadle.planner.passes.memory.program import RunForward

PAGE = (Path(__file__).parents[4] / "docs" / "memory-problem.md").read_text()


def example() -> MemoryProblem:
    text = re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert text is not None
    return msgspec.json.decode(text[1].encode(), type=MemoryProblem)


def test_the_example_is_solved_as_described():
    problem = example()
    assert optima(msgspec.to_builtins(problem)) == (29, 29)
    plan = plan_memory(problem)
    assert check(plan.decisions) == []
    assert plan.decisions.objective_ns == 29
    runs = [step for step in plan.decisions.program if isinstance(step, RunForward)]
    assert runs == [RunForward(0), RunForward(1, 0, True), RunForward(2), RunForward(3, 1)]


def test_every_field_is_described():
    for struct in (MemoryProblem, ForwardNode, Forward, BackwardNode, Backward):
        for name in struct.__struct_fields__:
            assert f"`{name}`" in PAGE, f"{struct.__name__}.{name}"
