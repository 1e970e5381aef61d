"""Loss curves of interrupted trainings against that of an uninterrupted one, bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple


class Start(NamedTuple):
    """The first step, where its states came from (`begin`, `memory` or `storage`), and when it began."""

    step: int
    source: str
    time_ns: int


@dataclass(frozen=True)
class Curve:
    """What one rank has written: where each start began, and each loss with its time, again where steps were repeated.

    Losses are texts of hexadecimal floats, times ns of the machine's monotonic clock."""

    starts: tuple[Start, ...]
    losses: tuple[tuple[int, str, int], ...]
    """(step, loss, time)."""
    saves_ns: tuple[int, ...] = ()
    """How long each `torch.save` took."""

    @property
    def last_step(self) -> int:
        """The step written last, -1 before the first one."""
        return self.losses[-1][0] if self.losses else -1


def read(path: Path) -> Curve:
    """The curve in a file; what a killed process has not written to its end does not count."""
    text = path.read_text() if path.exists() else ""
    lines = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
    starts = tuple(Start(int(words[1]), words[2], int(words[3])) for words in lines if words[0] == "from")
    losses = tuple((int(words[0]), words[1], int(words[2])) for words in lines if words[0].isdecimal())
    return Curve(starts, losses, tuple(int(words[1]) for words in lines if words[0] == "saved"))


def iteration_ns(curve: Curve, warm: int = 5) -> float:
    """The median over the steps after the first ones."""
    times = [time_ns for _, _, time_ns in curve.losses[warm:]]
    return median(later - earlier for earlier, later in pairwise(times))


def difference(expected: Sequence[Curve], found: Sequence[Curve]) -> str:
    """The first loss of any rank that is not that of the uninterrupted curve, or a step that is missing; nothing where
    all are equal. Repeated steps count each time."""
    for rank, (whole, curve) in enumerate(zip(expected, found, strict=True)):
        known = {step: loss for step, loss, _ in whole.losses}
        for step, loss, _ in curve.losses:
            if loss != known.get(step):
                return f"rank {rank} step {step}: {loss}, expected {known.get(step)}"
        if missing := known.keys() - {step for step, _, _ in curve.losses}:
            return f"rank {rank}: step {min(missing)} is missing"
    return ""


def repeated(curve: Curve) -> int:
    """How many steps were made more than once."""
    return len(curve.losses) - len({step for step, _, _ in curve.losses})
