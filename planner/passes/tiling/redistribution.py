"""How an array gets from one tiling to another: the cheapest path of collectives along single axes of the mesh.

One step changes the placement of one axis of the mesh. Later axes cut what earlier ones have left, so an axis may not
change a cut that a later axis cuts further.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from math import prod

import numpy as np

from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.decisions import Transfer, TransferStep
from treadle.planner.passes.tiling.graph import FORBIDDEN, Costs
from treadle.planner.passes.tiling.problem import ArrayTiling, CostModel, MeshAxis, TiledArray, TilingProblem

STEPS = 64
"""More steps than any path has: costs are multiplied by it to count steps in their last digits."""
Shape = tuple[int, ...]


def cuts_of(tiling: ArrayTiling, sizes: Shape) -> int:
    """In how many pieces `tiling` cuts an array; partial results and copies are whole."""
    return prod(size for placement, size in zip(tiling, sizes, strict=True) if placement[0] == "S")


def divides(tiling: ArrayTiling, shape: Shape, sizes: Shape) -> bool:
    """Whether each axis that `tiling` cuts exists and is a multiple of its number of pieces."""
    pieces = dict[int, int]()
    for placement, size in zip(tiling, sizes, strict=True):
        if placement[0] == "S":
            axis = int(placement[1:])
            pieces[axis] = pieces.get(axis, 1) * size
    return all(axis < len(shape) and shape[axis] % count == 0 for axis, count in pieces.items())


def tilings_of(shape: Shape, sizes: Shape, *, partial: bool) -> tuple[ArrayTiling, ...]:
    """All tilings that divide `shape`, the first axis of the mesh slowest: S0, S1, ..., R, and P if `partial`."""
    words = (*(f"S{axis}" for axis in range(len(shape))), "R", *(("P",) if partial else ()))
    return tuple(tiling for tiling in product(words, repeat=len(sizes)) if divides(tiling, shape, sizes))


def transfer_of(before: str, after: str) -> Transfer | None:
    """The collective that changes `before` to `after` along its axis; None where none does."""
    match before[0], after[0]:
        case "S", "R":
            return "allgather"
        case "P", "R":
            return "allreduce"
        case "P", "S":
            return "reduce-scatter"
        case "S", "S":
            return "alltoall"
        case "R", "S":
            return "slice"
    return None


@dataclass(frozen=True)
class PricedStep:
    """A step with its cost, elements or ns, and the elements that all workers together send for it."""

    step: TransferStep
    cost: int
    elements: int


@dataclass(frozen=True)
class PriceTable:
    """`costs[t, u]` of getting from one tiling to another, FORBIDDEN where no path does; `keys` counts steps too."""

    tilings: tuple[ArrayTiling, ...]
    places: dict[ArrayTiling, int]
    steps: tuple[tuple[PricedStep, ...], ...]
    keys: Costs
    costs: Costs

    def path(self, before: ArrayTiling, after: ArrayTiling) -> tuple[PricedStep, ...]:
        """The cheapest path; of equal ones the shortest, of those the first by axes and tilings."""
        place, end, path = self.places[before], self.places[after], list[PricedStep]()
        while place != end:
            for priced in self.steps[place]:
                there = self.places[priced.step.tiling]
                if priced.cost * STEPS + 1 + self.keys[there, end] == self.keys[place, end] < FORBIDDEN * STEPS:
                    path.append(priced)
                    place = there
                    break
            else:
                raise InputError(f"no collectives turn {','.join(before)} into {','.join(after)}")
        return tuple(path)


@dataclass(frozen=True)
class TilingPrices:
    """Prices of all arrays on the mesh of a problem; arrays of one shape and item size share a table."""

    mesh: tuple[MeshAxis, ...]
    model: CostModel
    tables: dict[tuple[Shape, int], PriceTable] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: TilingProblem) -> TilingPrices:
        return cls(problem.mesh, problem.model)

    @property
    def sizes(self) -> Shape:
        return tuple(axis.size for axis in self.mesh)

    def table(self, array: TiledArray) -> PriceTable:
        key = (array.shape, array.item_bytes)
        if key not in self.tables:
            self.tables[key] = self._table(*key)
        return self.tables[key]

    def path(self, array: TiledArray, before: ArrayTiling, after: ArrayTiling) -> tuple[PricedStep, ...]:
        return self.table(array).path(before, after)

    def _table(self, shape: Shape, item_bytes: int) -> PriceTable:
        tilings = tilings_of(shape, self.sizes, partial=True)
        places = {tiling: place for place, tiling in enumerate(tilings)}
        steps = tuple(tuple(self._steps(tiling, places, prod(shape), item_bytes)) for tiling in tilings)
        keys = np.full((len(tilings), len(tilings)), FORBIDDEN * STEPS, dtype=np.int64)
        np.fill_diagonal(keys, 0)
        for place, choices in enumerate(steps):
            for priced in choices:
                keys[place, places[priced.step.tiling]] = priced.cost * STEPS + 1
        for between in range(len(tilings)):
            np.minimum(keys, keys[:, between, None] + keys[None, between], out=keys)
        return PriceTable(tilings, places, steps, keys, np.minimum(keys // STEPS, FORBIDDEN))

    def _steps(
        self, tiling: ArrayTiling, places: dict[ArrayTiling, int], elements: int, item_bytes: int
    ) -> Iterator[PricedStep]:
        """All steps from `tiling`, in order of axes and tilings."""
        for axis, before in enumerate(tiling):
            others = (*tiling[:axis], *tiling[axis + 1 :])
            sizes = (*self.sizes[:axis], *self.sizes[axis + 1 :])
            shared = elements // cuts_of(others, sizes)
            ends = sorted({there[axis] for there in places})
            for after in ends:
                there = (*tiling[:axis], after, *tiling[axis + 1 :])
                transfer = transfer_of(before, after)
                if transfer is None or before == after or there not in places:
                    continue
                if {word for word in (before, after) if word[0] == "S"} & set(tiling[axis + 1 :]):
                    continue
                moved = self._moved(transfer, axis, shared)
                cost = moved
                if self.model == "time":
                    cost = self._time_ns(transfer, axis, shared * item_bytes)
                yield PricedStep(TransferStep(transfer=transfer, axis=axis, tiling=there), min(cost, FORBIDDEN), moved)

    def _moved(self, transfer: Transfer, axis: int, shared: int) -> int:
        """Elements that all workers send where each group along `axis` shares `shared` elements."""
        size = self.mesh[axis].size
        gathered = shared * (size - 1) * (prod(self.sizes) // size)
        if transfer == "slice":
            return 0
        if transfer == "allreduce":
            return 2 * gathered
        if transfer == "alltoall" and self.mesh[axis].alltoall == "direct":
            return gathered // size
        return gathered

    def _time_ns(self, transfer: Transfer, axis: int, shared_bytes: int) -> int:
        if transfer == "slice":
            return 0
        for cost in self.mesh[axis].costs:
            if cost.transfer == transfer:
                return cost.alpha_ns + -(-shared_bytes * 10**9 // cost.rate)
        raise InputError(f"axis {self.mesh[axis].name!r} of the mesh has no costs for {transfer!r}")
