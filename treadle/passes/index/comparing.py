"""Every answer of an index compared with that of a dictionary, operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, pairwise, zip_longest
from typing import TYPE_CHECKING

import numpy as np

from treadle.passes.index.reference import SortedKeys
from treadle.planner.passes.index.operations import DELETE, INSERT, LOOKUP, SCAN, WORDS, Keys, Workload

if TYPE_CHECKING:
    from treadle.runtime.index.learned_index import LearnedIndex

MOST_FINDINGS = 5
RUNS_SHOWN = 1000
"""Runs of operations of one kind after which progress is shown."""


class Reference:
    """What an index must answer: payloads by key, and keys in ascending order where there are scans."""

    def __init__(self, workload: Workload) -> None:
        self.payloads = dict(zip(workload.keys.tolist(), workload.payloads.tolist(), strict=True))
        self._ordered = SortedKeys(workload.keys) if bool((workload.operations.ops == SCAN).any()) else None

    def answer(self, op: int, key: int, payload: int) -> object:
        """What one operation returns: a payload or None, whether something changed, or pairs."""
        if op == LOOKUP:
            return self.payloads.get(key)
        if op == SCAN:
            assert self._ordered is not None
            return [(each, self.payloads[each]) for each in self._ordered.since(key, payload)]
        there = key in self.payloads
        if op == INSERT and not there:
            self.payloads[key] = payload
            if self._ordered is not None:
                self._ordered.add(key)
        elif op == DELETE and there:
            del self.payloads[key]
            if self._ordered is not None:
                self._ordered.remove(key)
        return there == (op == DELETE)


def wrong_answers(
    index: LearnedIndex, workload: Workload, on_compared: Callable[[int], None] = lambda count: None
) -> list[str]:
    """Findings of the first wrong answers, and of what is wrong with the index afterwards. `index` holds the loaded
    keys of the workload. on_compared: called now and then with the number of operations so far."""
    reference = Reference(workload)
    findings = [*islice(_wrong(index, workload, reference, on_compared), MOST_FINDINGS)]
    return findings or [*_wrong_at_end(index, reference)]


def _wrong(
    index: LearnedIndex, workload: Workload, reference: Reference, on_compared: Callable[[int], None]
) -> Iterator[str]:
    ops, keys, payloads = workload.operations
    edges = [0, *(np.flatnonzero(np.diff(ops)) + 1).tolist(), len(ops)]
    for run, (start, end) in enumerate(pairwise(edges)):
        if run % RUNS_SHOWN == 0:
            on_compared(start)
        op = int(ops[start])
        found = _answers(index, op, keys[start:end], payloads[start:end])
        given = zip(keys[start:end].tolist(), payloads[start:end].tolist(), found, strict=True)
        for number, (key, payload, answer) in enumerate(given, start):
            expected = reference.answer(op, key, payload)
            if answer != expected:
                one, other = map(_short, _differing(answer, expected))
                yield f"operation {number}: {WORDS[op]} {key} gave {one}, expected {other}"


def _answers(index: LearnedIndex, op: int, keys: Keys, payloads: Keys) -> list[object]:
    """What the index answers to operations of one kind."""
    if op == LOOKUP:
        values, found = index.lookup(keys)
        return [value if there else None for value, there in zip(values.tolist(), found.tolist(), strict=True)]
    if op == SCAN:
        scans = (index.scan(start, count) for start, count in zip(keys.tolist(), payloads.tolist(), strict=True))
        return [[*zip(found.tolist(), values.tolist(), strict=True)] for found, values in scans]
    changed = index.insert(keys, payloads) if op == INSERT else index.erase(keys)
    return [*map(bool, changed.tolist())]


def _wrong_at_end(index: LearnedIndex, reference: Reference) -> Iterator[str]:
    if broken := index.broken():
        yield f"after all operations: {broken}"
    if len(index) != len(reference.payloads):
        yield f"after all operations: {len(index)} keys, expected {len(reference.payloads)}"
    for found, expected in zip(index.items(), sorted(reference.payloads.items()), strict=False):
        if tuple(found) != expected:
            yield f"after all operations: {_short(found)} among all keys, expected {_short(expected)}"
            break


def _differing(found: object, expected: object) -> tuple[object, object]:
    """Both, of two lists the first items that differ."""
    if isinstance(found, list) and isinstance(expected, list):
        return next(pair for pair in zip_longest(found, expected) if pair[0] != pair[1])
    return found, expected


def _short(answer: object) -> str:
    return "nothing" if answer is None else str(answer)
