"""Times of schedules by successive halving: the slower half of the candidates is given up after each round, and those
that are left run twice as often in the next one (CoCoNet, section 4.6 of docs/fusion.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Generic, TypeVar

T = TypeVar("T")

FIRST_REPEATS = 5
KEPT = 3
"""Candidates that are measured to the end, however many there were."""


@dataclass(frozen=True)
class Timed(Generic[T]):
    """A candidate with the median of its runs, in seconds."""

    candidate: T
    seconds: float
    repeats: int


def halving(
    candidates: Sequence[T],
    run: Callable[[Sequence[T], int], Sequence[Sequence[float]]],
    *,
    repeats: int = FIRST_REPEATS,
    kept: int = KEPT,
) -> list[Timed[T]]:
    """All candidates, the fastest first; `run` gives the seconds of the runs of each. Those that are given up early
    come after those that ran on, with the times that they had then. Where Ctrl-C ends `run`, those of the rounds before
    it, none in the first one."""
    times: list[list[float]] = [[] for _ in candidates]
    left, order = list(range(len(candidates))), list[int]()
    while left:
        try:
            ran = run([candidates[number] for number in left], repeats)
        except KeyboardInterrupt:
            order = left + order if times[left[0]] else []
            break
        for number, seconds in zip(left, ran, strict=True):
            times[number] += seconds
        left.sort(key=lambda number: (median(times[number]), number))
        most = 0 if len(left) <= kept else max(kept, -(-len(left) // 2))
        order, left, repeats = left[most:] + order, left[:most], 2 * repeats
    return [Timed(candidates[number], median(times[number]), len(times[number])) for number in order]
