"""What ranks load, store and send, counted while they do it, equals the tables of the hand-worked fixtures."""

from __future__ import annotations

from fractions import Fraction

import pytest

from benchmarks.fusion.counters import Counter, counters
from tests.planner.passes.fusion.by_hand import SCHEDULES
from treadle.codegen.fusion.lower import lower
from treadle.planner.passes.fusion.program import Bindings
from treadle.runtime.fusion.build import build
from treadle.runtime.fusion.compare import compare
from treadle.runtime.fusion.runs import Runs

TABLE = [
    ("attention", "fused+", {"B": 1, "S": 2, "H": 4}, 2, (4 + 8 + 8 + 24, 8)),
    ("adam", "rs c agmv", {"N": 4}, 2, (26, 4)),
    ("pipeline", "rs cp ag", {"B": 1, "S": 2, "H": 2}, 2, (None, 2, 2, 2)),
]
"""Fixture, schedule, extents, ranks of a group; traffic (CoCoNet spec, section 7, and before it a product that reads x
and w and writes its result) and volumes of each rank."""


@pytest.mark.parametrize(("fixture", "name", "extents", "ranks", "amounts"), TABLE)
def test_traffic_and_volume_are_those_of_the_tables(
    fixture: str, name: str, extents: dict[str, int], ranks: int, amounts: tuple[int | None, ...]
) -> None:
    write, _ = SCHEDULES[fixture]
    bindings = Bindings(extents, ranks, 2 if fixture == "pipeline" else 1)
    lowered = lower(write(name), bindings)
    compared = compare(build(lowered, counts=True, quickly=True), lowered, Runs(repeats=2, order=1))
    assert compared.good, compared.problems
    rows = counters(lowered.program, bindings, compared.report.counted, runs=2)
    assert len(rows) == len(amounts)
    for row, amount in zip(rows, amounts, strict=True):
        assert row.equal, row
        assert amount is None or row.counted == (amount,) * ranks, row


def test_a_counter_is_equal_on_average_or_not() -> None:
    assert Counter("traffic", Fraction(3), (2, 4)).equal
    assert not Counter("traffic", Fraction(3), (3, 4)).equal
