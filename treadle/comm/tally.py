"""What the calls of a process group did: how many ran as planned, how many fell back, and why."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

log = logging.getLogger("treadle.comm")


@dataclass(frozen=True)
class Summary:
    """Calls so far, by name."""

    planned: dict[str, int]
    fell_back: dict[str, int]
    reasons: tuple[str, ...]
    """The lines that were logged, one for each call and reason."""

    def __str__(self) -> str:
        return f"planned: {_counts(self.planned)}; torch.distributed's own: {_counts(self.fell_back)}"


@dataclass
class Tally:
    """Counts calls; every reason is logged once."""

    planned: Counter[str] = field(default_factory=Counter)
    fallen: Counter[str] = field(default_factory=Counter)
    logged: dict[str, None] = field(default_factory=dict)

    def fell_back(self, call: str, reason: str) -> None:
        """The framework's collective runs."""
        self.fallen[call] += 1
        if (line := f"{call}: torch.distributed's own collective runs, {reason}") not in self.logged:
            self.logged[line] = None
            log.warning(line)

    def summary(self) -> Summary:
        return Summary(dict(self.planned), dict(self.fallen), tuple(self.logged))


def _counts(calls: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(calls.items())) or "none"
