"""Kernels of random schedules, in random orders of their blocks, leave what the interpreter says."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.codegen.fusion.random_schedules import schedules
from treadle.codegen.fusion.lower import Lowered
from treadle.runtime.fusion.build import build
from treadle.runtime.fusion.compare import compare
from treadle.runtime.fusion.runs import Runs


def wrong(made: Sequence[Lowered], order: int) -> list[str]:
    found = []
    for number, lowered in enumerate(made):
        compiled = build(lowered, quickly=True)
        kind = "floats" if number % 2 else "integers"
        problems = compare(compiled, lowered, Runs(repeats=2, order=order), kind=kind).problems  # type: ignore[arg-type]
        found += [f"{lowered.program.name}: {line}" for line in problems]
    return found


def test_a_schedule() -> None:
    assert wrong(schedules(0, 1), 1) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 4))
def test_many_schedules(number: int) -> None:
    assert wrong(schedules(number, 5), number) == []
