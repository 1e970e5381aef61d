"""Answers of an index next to a dictionary: right ones pass, every kind of wrong one is named."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tests.treadle.passes.index.dictionary_index import DictionaryIndex
from treadle.passes.index.comparing import MOST_FINDINGS, wrong_answers
from treadle.passes.index.reference import PART_KEYS, SortedKeys
from treadle.planner.passes.index.operations import DELETE, INSERT, LOOKUP, SCAN, Operations, Workload, payloads_of


def workload_of(*operations: tuple[int, int, int]) -> Workload:
    """Keys 10, 20, 30, 40 and these operations."""
    keys = np.array([10, 20, 30, 40], np.uint64)
    ops, asked, payloads = zip(*operations, strict=True)
    found = Operations(np.array(ops, np.uint8), np.array(asked, np.uint64), np.array(payloads, np.uint64))
    return Workload(keys, payloads_of(keys), found)


def findings(index: Any, workload: Workload) -> list[str]:
    index.load(workload.keys, workload.payloads)
    return wrong_answers(index, workload)


EVERYTHING = workload_of(
    (LOOKUP, 10, 0), (LOOKUP, 11, 0), (INSERT, 11, 5), (INSERT, 11, 6), (LOOKUP, 11, 0), (SCAN, 11, 2), (SCAN, 50, 9),
    (DELETE, 20, 0), (DELETE, 20, 0), (SCAN, 0, 9), (INSERT, 20, 7), (LOOKUP, 20, 0), (SCAN, 0, 0),
)  # fmt: skip


def test_right_answers_have_no_findings() -> None:
    assert findings(DictionaryIndex(), EVERYTHING) == []


@pytest.mark.parametrize(
    ("key", "found"),
    [
        (10, ["operation 0: lookup 10 gave ", "operation 9: scan 0 gave (11, 5), expected (10, "]),
        (11, ["operation 2: insert 11 gave False, expected True", "operation 5: scan 11 gave (20, "]),
        (40, ["operation 9: scan 0 gave nothing, expected (40, "]),
    ],
)
def test_wrong_answers_are_named_with_their_operation(key: int, found: list[str]) -> None:
    lines = findings(DictionaryIndex(key), EVERYTHING)
    assert len(lines) >= len(found)
    for part in found:
        assert any(line.startswith(part) for line in lines), lines


def test_only_the_first_findings_are_listed() -> None:
    lookups = workload_of(*[(LOOKUP, 10, 0)] * 20)
    assert len(findings(DictionaryIndex(10), lookups)) == MOST_FINDINGS


def test_what_is_wrong_after_the_operations_is_named() -> None:
    index = DictionaryIndex(finding="a fragment is too full")
    index.load(EVERYTHING.keys, EVERYTHING.payloads)
    index.items = lambda: iter([(10, 1)])  # type: ignore[method-assign]
    lookup = workload_of((LOOKUP, 10, 0))
    first, second = wrong_answers(index, lookup)  # type: ignore[arg-type]
    assert first == "after all operations: a fragment is too full"
    assert second.startswith("after all operations: (10, 1) among all keys, expected (10, ")


def test_sorted_keys_are_those_of_a_sorted_list() -> None:
    rng = random.Random(5)
    plain = sorted(rng.sample(range(10**6), 5 * PART_KEYS))
    keys = SortedKeys(np.array(plain, np.uint64))
    there = set(plain)
    for _ in range(6000):
        key = rng.choice((rng.randrange(10**6), plain[0], plain[-1]))
        if key in there:
            there.remove(key)
            keys.remove(key)
        else:
            there.add(key)
            keys.add(key)
    ordered = sorted(there)
    assert keys.since(0, 10**6) == ordered
    for start in (0, ordered[0], ordered[-1], ordered[-1] + 1, 500_000):
        assert keys.since(start, 3000) == [key for key in ordered if key >= start][:3000]


def test_sorted_keys_may_all_go_and_come_again() -> None:
    keys = SortedKeys(np.array([], np.uint64))
    for key in (5, 2, 9):
        keys.add(key)
    for key in (2, 9, 5):
        keys.remove(key)
    assert keys.since(0, 5) == []
    for key in range(4 * PART_KEYS):
        keys.add(key)
    for key in range(4 * PART_KEYS):
        keys.remove(key)
    keys.add(7)
    assert keys.since(0, 5) == [7]
