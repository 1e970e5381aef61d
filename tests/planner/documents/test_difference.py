"""Differences in words: lists by names, numbers with units and shares."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.planner.documents.difference import Change, changed, counted, differences, more_and_less


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"budget_bytes": 8 << 30}, {"budget_bytes": 6 << 30}, ["budget: 8 GiB -> 6 GiB (-25.00%)"]),
        ({"time_us": 1500.0}, {"time_us": 3000.0}, ["time: 1.5 ms -> 3 ms (+100.00%)"]),
        ({"n": 1}, {"n": 4096}, ["n: 1 -> 4,096 (4096x)"]),
        ({"n": 0}, {"n": 2}, ["n: 0 -> 2"]),
        ({"on": True}, {"on": False}, ["on: yes -> no"]),
        ({"a": {"b": "y"}}, {"a": {"c": "x"}}, ["a.b: y -> nothing", "a.c: nothing -> x"]),
        ({"v": [1, 2, 3]}, {"v": [1, 5, 3]}, ["v[1]: 2 -> 5 (+150.00%)"]),
        ({"v": [1] * 9}, {"v": [2] * 9}, ["v: 9 of 9 entries differ, first [0]: 1 -> 2"]),
        ({"v": [1]}, {"v": [1, 2]}, ["v: 1 entries -> 2"]),
        ({"v": [{"id": "a"}, {"id": "b"}]}, {"v": [{"id": "b"}, {"id": "a"}]}, ["v: in another order"]),
        (
            {"v": [{"id": "a", "t": 1}, {"id": "b"}]},
            {"v": [{"id": "a", "t": 2}, {"id": "c"}]},
            ["v: 1 more (c)", "v: 1 less (b)", "v[a].t: 1 -> 2 (+100.00%)"],
        ),
        (
            {"v": [{"id": f"a{i}", "t": 1} for i in range(6)]},
            {"v": [{"id": f"a{i}", "t": 2} for i in range(6)]},
            ["v: 6 of 6 differ (a0, a1, a2, a3 and 2 more), in t x 6"],
        ),
    ],
)
def test_values_are_compared_by_name_place_and_unit(before: Any, after: Any, lines: list[str]) -> None:
    assert [str(each) for each in differences(before, after)] == lines


def test_values_for_programs_stay_numbers():
    assert changed("peak_bytes", 2048, 1024) == [Change("peak_bytes", "2 KiB -> 1 KiB (-50.00%)", 2048, 1024)]


def test_names_are_counted_the_most_frequent_first():
    assert counted({"add": 1, "gelu": 8}) == "gelu x 8, add"
    (change,) = more_and_less("recomputed", ["add"], ["gelu", "gelu"], "op")
    assert str(change) == "recomputed: 2 ops more (gelu x 2), 1 op less (add)"
    assert more_and_less("recomputed", ["a", "b"], ["b", "a"], "op") == []
