"""The line of a search: one form, with units, that never gets worse."""

from __future__ import annotations

import pytest

from treadle.cli.progress import ProgressLine
from treadle.planner.solver import Progress


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def shown() -> list[str]:
    return []


def test_a_line_names_the_method_and_gives_each_number_a_unit(shown: list[str]) -> None:
    line = ProgressLine(shown.append, lambda: 3.2)
    line(Progress(None, None, None, 0.0))
    line(Progress(2e6, 1e6, 0.5, 3.2, "windows and bound 3"))
    assert shown == [
        "best none yet   bound none yet   3 s",
        "windows and bound 3: best 2 ms   bound 1 ms   gap 50.00%   3 s",
    ]


def test_the_next_method_neither_loses_the_best_nor_restarts_the_time(shown: list[str]) -> None:
    clock = Clock()
    line = ProgressLine(shown.append, clock)
    for second, best, bound, method in ((5, 2e6, 1e6, "ring"), (9, None, None, "trees"), (12, 3e6, 5e5, "milp")):
        clock.now_s = second
        line(Progress(best, bound, None, 0.0, method))
    assert shown == [
        f"{work}   gap 50.00%   {second} s"
        for work, second in (
            ("ring: best 2 ms   bound 1 ms", 5),
            ("trees: best 2 ms   bound 1 ms", 9),
            ("milp: best 2 ms   bound 1 ms", 12),
        )
    ]


def test_the_next_plan_starts_anew_under_its_own_name(shown: list[str]) -> None:
    line = ProgressLine(shown.append, lambda: 7.0)
    line.begin("0.2x, 1 of 2")
    line(Progress(2e6, 1e6, None, 0.0))
    line.begin("0.4x, 2 of 2")
    line(Progress(4e6, None, None, 0.0))
    assert shown[-2:] == ["0.4x, 2 of 2", "0.4x, 2 of 2: best 4 ms   bound none yet   7 s"]


def test_a_bound_never_stands_above_the_best(shown: list[str]) -> None:
    line = ProgressLine(shown.append, lambda: 1.0)
    line(Progress(None, 3e6, None, 0.0, "pool"))
    line(Progress(2e6, 1e6, None, 0.0, "offset"))
    assert shown[-1] == "offset: best 2 ms   bound 2 ms   gap 0.00%   1 s"
