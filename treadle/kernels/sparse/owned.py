"""Which units a part has: those that hash to it, or an even range."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from treadle.kernels.sparse.library import MAX_UNITS, OwnedCall, library, thread_count
from treadle.planner.errors import InputError


@dataclass(frozen=True)
class OwnedPart:
    """Part `part` of `parts`, with `count` units of `units`: those of `listed` int32 [count] in ascending order, or
    without it those from `first` on. `rank` int32 [units] has the rank of every unit of the gradient in its part."""

    units: int
    parts: int
    part: int
    count: int
    first: int = 0
    seed: int = 0
    listed: Tensor | None = None
    rank: Tensor | None = None

    @property
    def words(self) -> int:
        """Words of its bitmap."""
        return -(-self.count // 32)

    @property
    def indices(self) -> Tensor:
        """Its units int32 [count], ascending."""
        if self.listed is not None:
            return self.listed
        return torch.arange(self.first, self.first + self.count, dtype=torch.int32)

    def call(self) -> OwnedCall:
        """The part as the kernels take it."""
        return OwnedCall(
            list=None if self.listed is None or not self.count else self.listed.data_ptr(),
            rank=None if self.rank is None else self.rank.data_ptr(),
            units=self.units,
            first=self.first,
            count=self.count,
            seed=self.seed % 2**32,
            parts=self.parts,
            part=self.part,
        )


class Owned:
    """The parts of `units` units: `owned[p]` is part p. Hashed ones take 8 bytes for each unit."""

    def __init__(self, parts: tuple[OwnedPart, ...]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts)

    def to(self, device: torch.device | str) -> Owned:
        """The parts for tensors on a device."""
        rank = self.parts[0].rank
        rank = None if rank is None else rank.to(device)
        return Owned(
            tuple(replace(p, listed=None if p.listed is None else p.listed.to(device), rank=rank) for p in self.parts)
        )

    def __getitem__(self, part: int) -> OwnedPart:
        return self.parts[part]


def owned(units: int, parts: int, seed: int, threads: int | None = None) -> Owned:
    """Parts h0(unit) by the hash function of `seed`. Raises InputError for more units than 32 bits number."""
    _require(units, parts)
    listed, rank = (torch.empty(units, dtype=torch.int32) for _ in range(2))
    counts = torch.empty(parts, dtype=torch.int64)
    library().call("own", units, parts, seed % 2**32, listed, rank, counts, thread_count(threads))
    lists = listed.split(counts.tolist())
    return Owned(
        tuple(OwnedPart(units, parts, part, len(each), 0, seed, each, rank) for part, each in enumerate(lists))
    )


def ranges(units: int, parts: int) -> Owned:
    """Even ranges: part p has the units from p * units // parts to (p + 1) * units // parts."""
    _require(units, parts)
    edges = [part * units // parts for part in range(parts + 1)]
    return Owned(
        tuple(OwnedPart(units, parts, part, edges[part + 1] - edges[part], edges[part]) for part in range(parts))
    )


def _require(units: int, parts: int) -> None:
    if not 0 <= units <= MAX_UNITS or parts < 1:
        raise InputError(f"found {units} units in {parts} parts, expected at most {MAX_UNITS} units and a part")
