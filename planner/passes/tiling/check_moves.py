"""The cheapest moves from one tiling to another along single axes of a mesh, searched by the checker.

A cut of an axis of the mesh divides what earlier axes have left. It may be changed only while no later axis of the mesh
cuts the same axis of the array.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from functools import cached_property
from math import prod
from typing import NamedTuple

from treadle.planner.passes.tiling.decisions import Transfer, TransferStep
from treadle.planner.passes.tiling.problem import ArrayTiling, MeshAxis, TiledArray, TilingProblem

SINGLE: dict[str, Transfer] = {
    "SR": "allgather",
    "PR": "allreduce",
    "PS": "reduce-scatter",
    "SS": "alltoall",
    "RS": "slice",
}
"""What changes the first placement to the second one; nothing makes a partial result of another."""


class Route(NamedTuple):
    """Elements that all workers send, and the cost: elements or ns."""

    cost: int
    elements: int
    steps: tuple[TransferStep, ...]


class CheapestMoves:
    """Cheapest routes on the mesh of one problem; each start is searched once for arrays of one shape."""

    def __init__(self, problem: TilingProblem) -> None:
        self.problem, self.mesh = problem, problem.mesh
        self.known: dict[tuple[tuple[int, ...], int, ArrayTiling], dict[ArrayTiling, Route]] = {}

    @cached_property
    def workers(self) -> int:
        return prod(axis.size for axis in self.mesh)

    def pieces(self, tiling: ArrayTiling) -> int:
        """In how many pieces a tiling cuts an array."""
        return prod(axis.size for axis, word in zip(self.mesh, tiling, strict=True) if word.startswith("S"))

    def divides(self, tiling: ArrayTiling, shape: tuple[int, ...]) -> bool:
        """Whether every axis that is cut is there, and a multiple of what cuts it."""
        left = list(shape)
        for axis, word in zip(self.mesh, tiling, strict=True):
            if word.startswith("S"):
                cut = int(word[1:])
                if cut >= len(left) or left[cut] % axis.size:
                    return False
                left[cut] //= axis.size
        return True

    def route(self, array: TiledArray, before: ArrayTiling, after: ArrayTiling) -> Route | None:
        """The cheapest route; of several the one of fewest steps, of those the first by axes and tilings."""
        key = (array.shape, array.item_bytes, before)
        if key not in self.known:
            self.known[key] = self._routes(array, before)
        return self.known[key].get(after)

    def _routes(self, array: TiledArray, before: ArrayTiling) -> dict[ArrayTiling, Route]:
        """By where they lead. Searched in the order of cost, steps, and what the steps are."""
        found: dict[ArrayTiling, Route] = {}
        Waiting = tuple[int, int, tuple[tuple[int, ArrayTiling], ...], ArrayTiling, int, tuple[TransferStep, ...]]
        heap: list[Waiting] = [(0, 0, (), before, 0, ())]
        while heap:
            cost, length, order, here, elements, steps = heapq.heappop(heap)
            if here in found:
                continue
            found[here] = Route(cost, elements, steps)
            for step, price, moved in self._steps(array, here):
                if step.tiling not in found:
                    following = (*order, (step.axis, step.tiling))
                    entry = (cost + price, length + 1, following, step.tiling, elements + moved, (*steps, step))
                    heapq.heappush(heap, entry)
        return found

    def _steps(self, array: TiledArray, here: ArrayTiling) -> Iterator[tuple[TransferStep, int, int]]:
        """Steps from a tiling, each with its cost and the elements that it moves."""
        words = [*(f"S{axis}" for axis in range(len(array.shape))), "R"]
        for place, axis in enumerate(self.mesh):
            later = here[place + 1 :]
            for word in words:
                kind = SINGLE.get(here[place][0] + word[0])
                there = (*here[:place], word, *later)
                bound = [each for each in (here[place], word) if each != "R" and each in later and each != "P"]
                if kind is None or word == here[place] or bound or not self.divides(there, array.shape):
                    continue
                shared = prod(array.shape) // (self.pieces(here) // (axis.size if here[place][0] == "S" else 1))
                moved = self._elements(kind, axis, shared)
                price = self._price(kind, axis, shared * array.item_bytes, moved)
                if price is not None:
                    yield TransferStep(transfer=kind, axis=place, tiling=there), price, moved

    def _elements(self, kind: Transfer, axis: MeshAxis, shared: int) -> int:
        """What all workers send for an array of which each group along `axis` shares that many elements."""
        groups, others = self.workers // axis.size, axis.size - 1
        if kind == "slice":
            return 0
        if kind == "alltoall" and axis.alltoall == "direct":
            return groups * (shared // axis.size) * others
        return groups * shared * others * (2 if kind == "allreduce" else 1)

    def _price(self, kind: Transfer, axis: MeshAxis, shared_bytes: int, moved: int) -> int | None:
        """Elements, or ns; None without a price for this transfer."""
        if self.problem.model != "time":
            return moved
        if kind == "slice":
            return 0
        known = [cost.alpha_ns - shared_bytes * 10**9 // -cost.rate for cost in axis.costs if cost.transfer == kind]
        return known[0] if known else None
