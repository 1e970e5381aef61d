"""What the memory pass decides: the explicit problem it solved and the program that solves it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from treadle.planner.documents.scalars import Count, Decisions
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.program import Instruction


class MemoryDecisions(Decisions, frozen=True, kw_only=True, tag_field="pass", tag="memory"):
    """The program and its figures. Times are in ns."""

    problem: MemoryProblem
    dependency_set: Literal["entering", "leaving"] = "entering"
    families: tuple[str, ...] | None = None
    """Families of implementations that the plan may use; absent for all."""
    recompute: bool = True
    program: tuple[Instruction, ...]
    objective_ns: Count
    """Sum of the times of everything the program runs (MONeT, equation 4.9)."""
    store_all_ns: Count
    """The same sum without any recomputation."""
    bound_peak_bytes: Count
    """Largest left side of a memory constraint of the 0-1 program. The checker, which does not build the program,
    requires only that it lies between the exact peak and the budget."""
    exact_peak_bytes: Count
    """Peak of the byte-accurate simulation."""
    store_all_peak_bytes: Count

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield (path, found, expected) for every broken cross reference of the problem."""
        for path, found, expected in self.problem.problems():
            yield path.replace("$", "$.decisions.problem", 1), found, expected
