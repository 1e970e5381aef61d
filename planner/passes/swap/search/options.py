"""Options of the search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InputError
from treadle.planner.passes.swap.decisions import Allocator, SwapDecisions
from treadle.planner.passes.swap.search.executors import dask_address
from treadle.planner.passes.swap.search.generations import GeneticParameters
from treadle.planner.search.in_turns import Measuring

BOTH: tuple[Allocator, ...] = ("pool", "offset")
"""Allocators of the runtime. A pool loses memory to its classes, an arena to its holes; neither always loses less."""
UNRECORDED = ("workers", "executor", "allocators", "measuring")
"""Options that are not among those that a plan records."""
Method = Literal["auto", "genetic", "exact"]


@dataclass(frozen=True)
class SwapOptions:
    """Defaults that are None differ between the faithful search and the default one; see `effort`.

    faithful: only the genetic search of SwapAdvisor, section 4.4: no planted individuals, a population of 144,
    temperature 1, threshold 2, no use of memory that rounding leaves, no local search. `keep_order`, `keep_pool`: only
    the order of the trace, only the best planted pool for it. `time_limit_s` is a safety net; what it ends may differ
    between runs.
    """

    method: Method = "auto"
    allocator: Allocator = "pool"
    allocators: tuple[Allocator, ...] = ()
    """If any, the plan is the fastest that one of them gives."""
    faithful: bool = False
    keep_order: bool = False
    keep_pool: bool = False
    free_classes: bool = False
    population: int | None = None
    generations: int = 1000
    patience: int = 100
    """Generations without improvement after which the search ends."""
    mutation: float | None = None
    temperature: float | None = None
    threshold: int | None = None
    seed: int = 0
    time_limit_s: float = 300.0
    workers: int = 1
    """Processes; they change only the time of the search."""
    executor: str | None = None
    """dask://HOST:PORT or dask://local."""
    measuring: Measuring[Plan[SwapDecisions]] | None = None
    """If any, how the best plans of each allocator and part of the search are measured; the fastest is taken."""

    def __post_init__(self) -> None:
        if self.executor is not None:
            dask_address(self.executor)
        if self.free_classes and self.allocator != "pool":
            raise InputError(f"free classes need the allocator pool, found {self.allocator}", where="free_classes")

    @property
    def effort(self) -> GeneticParameters:
        population = self.population if self.population is not None else 144 if self.faithful else 64
        temperature = self.temperature if self.temperature is not None else 1.0 if self.faithful else 0.03
        return GeneticParameters(population, self.generations, self.patience, temperature, self.seed)

    @property
    def recorded(self) -> dict[str, Any]:
        """Options that affect the outcome, resolved, for the provenance."""
        effort = {"population": self.effort.population, "temperature": self.effort.temperature}
        return {**{name: getattr(self, name) for name in self.__dataclass_fields__ if name not in UNRECORDED}, **effort}
