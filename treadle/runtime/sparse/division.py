"""How the units of a gradient are divided into the parts of a scheme: hashed ones, or even ranges."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from treadle.kernels.sparse import PartitionMemory, aggregate, decode, gather, owned, ranges
from treadle.kernels.sparse.partition import Method
from treadle.planner.passes.sparse.decisions import HashSlots
from treadle.planner.passes.sparse.hashing import DEFAULT_SEEDS
from treadle.runtime.sparse.entries import Entries


class Division(ABC):
    """`units` units in parts. `sizes` are the units of each part, `starts` the first ones of parts that are ranges."""

    owned: Any
    whole: Any
    """All units as one part."""
    sizes: Sequence[int]
    starts: Sequence[int]

    def part(self, number: int) -> Any:
        """Which units a part has, as kernels take it."""
        return self.owned[number]

    def add(self, part: int, contributions: Sequence[Entries]) -> Entries:
        """The sum of contributions to a part, added up in their order, in ascending order of units."""
        if contributions[0].indices is None:
            total = contributions[0].values.clone()
            for each in contributions[1:]:
                total += each.values
            return Entries(None, total)
        given = [(each.units, each.values) for each in contributions]
        bitmap, values = aggregate(given, self.part(part))
        return Entries(decode(bitmap, self.part(part)), values, bitmap)

    def in_order(self, parts: Sequence[Entries]) -> Entries:
        """The entries of parts that share no unit in ascending order, without sorting them."""
        bitmap, values = aggregate([(each.units, each.values) for each in parts], self.whole)
        return Entries(decode(bitmap, self.whole), values)

    @abstractmethod
    def of_dense(self, values: Tensor) -> list[Entries]:
        """The non-zero units of a dense gradient [units, width], by part."""

    @abstractmethod
    def of_entries(self, entries: Entries) -> list[Entries]:
        """Entries by part."""


class Ranges(Division):
    """Part p of n has the units from p * units // n on."""

    def __init__(self, units: int, parts: int) -> None:
        bounds = [part * units // parts for part in range(parts + 1)]
        self.starts = bounds[:-1]
        self.sizes = [stop - start for start, stop in pairwise(bounds)]
        self.owned, self.whole = ranges(units, parts), ranges(units, 1)[0]
        self.inner = torch.tensor(bounds[1:-1], dtype=torch.int32)
        self.memory: PartitionMemory | None = None

    def of_dense(self, values: Tensor) -> list[Entries]:
        indices = self._nonzero(values)
        return self.of_entries(Entries(indices, gather(values, indices)))

    def _nonzero(self, values: Tensor) -> Tensor:
        """The rows that are not zero, ascending."""
        if values.device.type != "cpu":
            return torch.nonzero(values.any(1)).view(-1).int()
        self.memory = self.memory or PartitionMemory(1, 1, 0, DEFAULT_SEEDS, method="count")
        return self.memory.collect(values).indices

    def of_entries(self, entries: Entries) -> list[Entries]:
        if not entries.ascending:
            entries = self.in_order([entries])
        cuts = torch.searchsorted(entries.units, self.inner.to(entries.units.device)).tolist()
        ends = [*cuts, len(entries.units)]
        return [
            Entries(entries.units[start:stop], entries.values[start:stop])
            for start, stop in zip([0, *cuts], ends, strict=True)
        ]

    def slices(self, values: Tensor) -> list[Entries]:
        """All units of a dense gradient, by part."""
        return [Entries(None, part) for part in values.split(list(self.sizes))]


class Hashed(Division):
    """The part of a unit is its hash. The memory has `slots` for each part, and grows where they do not do. CPUs count
    instead of filling slots, which is faster there; the parts are the same."""

    def __init__(self, units: int, parts: int, slots: HashSlots, seeds: Sequence[int], device: torch.device) -> None:
        self.starts: list[int] = []
        self.units, self.parts = units, parts
        self.owned, self.whole = owned(units, parts, seeds[0]), ranges(units, 1)[0]
        self.sizes = [self.owned[part].count for part in range(parts)]
        method: Method = "count" if device.type == "cpu" else "hash"
        self.memory = PartitionMemory(parts, slots.slots, slots.serial, seeds, device=device.type, method=method)
        self.place: Tensor | None = None

    def of_dense(self, values: Tensor) -> list[Entries]:
        found = self.memory.collect(values)
        return self._split(found, gather(values, found.indices))

    def of_entries(self, entries: Entries) -> list[Entries]:
        found = self.memory.partition(entries.units)
        if self.place is None:
            self.place = torch.empty(self.units, dtype=torch.int32, device=entries.units.device)
        # Rows of the entries by unit: only those that are read were just written.
        self.place[entries.units.long()] = torch.arange(len(entries.units), dtype=torch.int32, device=self.place.device)
        return self._split(found, gather(entries.values, self.place[found.indices.long()]))

    def _split(self, found: Any, values: Tensor) -> list[Entries]:
        counts = list(found.counts)
        return [
            Entries(indices, part)
            for indices, part in zip(found.indices.split(counts), values.split(counts), strict=True)
        ]
