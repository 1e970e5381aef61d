"""What can be done with a group of gradients of one size on one problem: options that differ in what they take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from treadle.planner.machine.compressors import ALGORITHMS
from treadle.planner.passes.compression.options import Option, compressions, options, summed
from treadle.planner.passes.compression.payload import Prices, StepWork
from treadle.planner.passes.compression.problem import CompressionProblem

Named = tuple[str | None, Option]
"""An option with its compressor, None for one that compresses nothing."""
PLANNED: Option = ("planned@flat",)


@dataclass(frozen=True)
class PricedOption:
    """An option with its compressor, None for one that compresses nothing, and the work of its steps."""

    compressor: str | None
    steps: Option
    works: tuple[StepWork, ...]

    @property
    def timing(self) -> tuple[tuple[tuple[str, ...], int], ...]:
        """What its steps hold, and for how many ns."""
        return tuple((work.resources, work.ns) for work in self.works)


def candidates(problem: CompressionProblem, elements: int, gradients: int = 1) -> tuple[PricedOption, ...]:
    """Every option for a group of `gradients` with `elements` in all: those that compress nothing first, then each
    compressor's in the order of the problem and of the tree. Of options whose steps hold the same for the same time the
    first is listed only."""
    found: dict[tuple[tuple[tuple[str, ...], int], ...], PricedOption] = {}
    prices = Prices(problem, elements)
    for name, steps in named_options(problem):
        candidate = PricedOption(name, steps, prices.works(name, steps, gradients))
        found.setdefault(candidate.timing, candidate)
    return tuple(found.values())


def named_options(problem: CompressionProblem, only: tuple[str, ...] = ("device", "host")) -> Iterator[Named]:
    """Every option of a problem that compresses at places of `only`: first those that compress nothing."""
    yield from ((None, steps) for steps in trees(problem, ()))
    if problem.planned is not None:
        yield None, PLANNED
    for name in problem.names:
        places = tuple(place for place in places_of(problem, name) if place in only)
        for steps in (*trees(problem, places), *_summed(problem, name, places)):
            if compressions(steps) and allowed(problem, steps):
                yield name, steps


def allowed(problem: CompressionProblem, steps: Option) -> bool:
    """Whether it encodes as often as the problem lets a gradient be encoded, or less."""
    return problem.compressions is None or compressions(steps) <= problem.compressions


def places_of(problem: CompressionProblem, name: str) -> tuple[str, ...]:
    """Where the problem has that compressor, the device first."""
    return tuple(sorted(cost.place for cost in problem.compressors if cost.name == name))


def trees(problem: CompressionProblem, places: tuple[str, ...]) -> tuple[Option, ...]:
    """The options of the tree: flat ones, and hierarchical ones where there are several nodes of several ranks."""
    return tuple(steps for hierarchical in hierarchies(problem) for steps in options(places, hierarchical))


def hierarchies(problem: CompressionProblem) -> tuple[bool, ...]:
    """Whether options are hierarchical: those first, as the exchange is by default, where nodes have several ranks."""
    return (True, False) if problem.hierarchical else (False,)


def _summed(problem: CompressionProblem, name: str, places: tuple[str, ...]) -> Iterator[Option]:
    known = all(cost.wire is None for cost in problem.compressors if cost.name == name)
    algorithm = ALGORITHMS.get(name.partition(":")[0])
    if known and algorithm is not None and algorithm.summable:
        for hierarchical in hierarchies(problem):
            yield from summed(places, hierarchical)


def inter_allgather(problem: CompressionProblem, place: str) -> Option:
    """Compressed between nodes only, or between all ranks of one level, by an allgather."""
    return between_nodes(problem, f"compress@{place}", "allgather@SCOPE", f"decompress@{place}")


def between_nodes(problem: CompressionProblem, *steps: str) -> Option:
    """Steps whose scope is spelled SCOPE: between nodes, with a reduce-scatter before and an allgather after them; of
    all ranks if nodes have one rank, or there is one node."""
    if problem.hierarchical:
        return ("reduce-scatter@intra", *(step.replace("SCOPE", "inter") for step in steps), "allgather@intra")
    return tuple(step.replace("SCOPE", "flat") for step in steps)
