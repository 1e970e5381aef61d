"""The progress of a search in one form for all passes: what is at work, best, bound, gap and elapsed time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treadle.planner.documents.scalars import format_time

if TYPE_CHECKING:
    from treadle.planner.solver import Progress


@dataclass
class ProgressLine:
    """Called with each state of a search, shows its line. Of one part, one of several plans, the best time never rises,
    the bound never falls, and neither is lost when the next method begins. `elapsed_s` counts from the start of the
    command, in seconds."""

    show: Callable[[str], None]
    elapsed_s: Callable[[], float]
    part: str = ""
    best_ns: float | None = None
    bound_ns: float | None = None

    def begin(self, part: str) -> None:
        """The next states are those of another plan."""
        if part != self.part:
            self.part, self.best_ns, self.bound_ns = part, None, None
            self.show(part)

    def __call__(self, progress: Progress) -> None:
        self.best_ns = min((ns for ns in (self.best_ns, progress.incumbent) if ns is not None), default=None)
        self.bound_ns = max((ns for ns in (self.bound_ns, progress.bound) if ns is not None), default=None)
        if self.best_ns is not None and self.bound_ns is not None:
            self.bound_ns = min(self.bound_ns, self.best_ns)
        work = ": ".join(text for text in (self.part, progress.method) if text)
        figures = progress_text(self.best_ns, self.bound_ns, self.elapsed_s())
        self.show(f"{work}: {figures}" if work else figures)


def progress_text(best_ns: float | None, bound_ns: float | None, elapsed_s: float) -> str:
    """`best 2 ms   bound 1 ms   gap 50.00%   3 s`."""
    best, bound = ("none yet" if ns is None else format_time(ns) for ns in (best_ns, bound_ns))
    gap = f"   gap {1 - bound_ns / best_ns:.2%}" if best_ns and bound_ns is not None else ""
    return f"best {best}   bound {bound}{gap}   {elapsed_s:.0f} s"
