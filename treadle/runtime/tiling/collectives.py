"""What generated tilings call to move tiles between workers: one collective along one axis of a mesh for each step.

They are PyTorch's functional collectives, so that CommDebugMode counts them. Tensors are plain ones, the tiles of this
worker; cuts are even.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.placement_types import Placement

from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes.tiling.problem import ArrayTiling

functional = torch.ops._c10d_functional


def placements(tiling: ArrayTiling | Sequence[str]) -> list[Placement]:
    """A tiling in PyTorch's words."""
    words = {"R": Replicate(), "P": Partial()}
    return [words[placement] if placement in words else Shard(int(placement[1])) for placement in tiling]


def words(found: Sequence[Placement]) -> list[str]:
    """A tiling of DTensor in the plan's words; other placements, such as stripes, as PyTorch prints them."""
    return [_word(placement) for placement in found]


def _word(placement: Placement) -> str:
    if type(placement) is Shard:
        return f"S{placement.dim}"
    if type(placement) is Replicate:
        return "R"
    sums = type(placement) is Partial and placement.reduce_op in ("sum", "avg")
    return "P" if sums else str(placement)


class Mesh:
    """A device mesh, as generated text calls it. `axis` is a number of its axes, `cut` an axis of the tile."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        self.sizes = tuple(mesh.shape)
        coordinate = mesh.get_coordinate()
        if coordinate is None:
            raise InputError("found a process outside the mesh, expected one of its workers", where="treadle.shard")
        self.coordinate = tuple(coordinate)
        self.groups = [mesh.get_group(axis).group_name for axis in range(mesh.ndim)]
        self.device = torch.device(mesh.device_type)

    def allgather(self, tile: Tensor, axis: int, cut: int) -> Tensor:
        """The tiles of all workers along `axis`, joined along `cut`."""
        size = self.sizes[axis]
        tiles = functional.all_gather_into_tensor(tile.contiguous(), size, self.groups[axis])
        joined: Tensor = functional.wait_tensor(tiles)
        return joined if cut == 0 else torch.cat(joined.chunk(size), cut)

    def allreduce(self, tile: Tensor, axis: int, merge: str = "sum") -> Tensor:
        """The partial results along `axis`, merged."""
        numbers = _numbers(tile).contiguous()
        total: Tensor = functional.wait_tensor(functional.all_reduce(numbers, merge, self.groups[axis]))
        return total.to(tile.dtype)

    def reduce_scatter(self, tile: Tensor, axis: int, cut: int, merge: str = "sum") -> Tensor:
        """This worker's part along `cut` of the partial results along `axis`, merged."""
        size, numbers = self.sizes[axis], _numbers(tile)
        rows = (numbers if cut == 0 else torch.cat(numbers.chunk(size, cut))).contiguous()
        part: Tensor = functional.wait_tensor(functional.reduce_scatter_tensor(rows, merge, size, self.groups[axis]))
        return part.to(tile.dtype)

    def alltoall(self, tile: Tensor, axis: int, before: int, after: int) -> Tensor:
        """The tile cut along `after`, where it was cut along `before`."""
        size = self.sizes[axis]
        parts = torch.stack(tile.chunk(size, after))
        splits = [1] * size
        received: Tensor = functional.wait_tensor(
            functional.all_to_all_single(parts, splits, splits, self.groups[axis])
        )
        return torch.cat(received.unbind(), before)

    def part(self, tile: Tensor, axis: int, cut: int) -> Tensor:
        """This worker's part along `cut` of what all of them along `axis` have."""
        return tile.chunk(self.sizes[axis], cut)[self.coordinate[axis]].contiguous()

    def once(self, tile: Tensor, *axes: int) -> Tensor:
        """What is added by one worker along `axes` only: zeros on all others."""
        return torch.zeros_like(tile) if any(self.coordinate[axis] for axis in axes) else tile

    def made(self, tile: Tensor, shape: list[int]) -> None:
        """Raises CheckFailed for a result that has not the `shape` of the planned tile."""
        if list(tile.shape) != shape:
            raise CheckFailed(f"the step made a tile of {list(tile.shape)}, the plan has {shape}")

    def none_ignored(self, weight: Tensor, targets: Tensor) -> None:
        """Raises InputError where targets are ignored: means over unequal parts are not the mean over all."""
        if weight.item() != targets.numel():
            text = "found ignored targets in a cut batch, expected none: the loss would not be the mean over the batch"
            raise InputError(text, where="treadle.shard")

    def native_dropout(
        self, tile: Tensor, share: float, train: bool | None, shape: list[int], stride: list[int], tiling: list[str]
    ) -> tuple[Tensor, Tensor]:
        """The tile with elements left out, and which of them were kept: the part for this worker of what one process
        would draw into `shape` with `stride`, where all workers have the same random state."""
        if train is False or share == 0:
            return tile.clone(), torch.ones_like(tile, dtype=torch.bool)
        drawn = torch.empty_strided(shape, stride, dtype=torch.bool, device=tile.device).bernoulli_(1 - share)
        kept = self.tile(drawn, tiling)
        return tile * kept * (1 / (1 - share) if share < 1 else 0.0), kept

    def tile(self, whole: Tensor, tiling: Sequence[str]) -> Tensor:
        """This worker's tile of what every worker has."""
        for axis, placement in enumerate(tiling):
            if placement.startswith("S"):
                whole = self.part(whole, axis, int(placement[1]))
        return whole

    def whole(self, tile: Tensor, tiling: Sequence[str]) -> Tensor:
        """The whole tensor on each worker, by collectives that are in no plan."""
        for axis in reversed(range(len(tiling))):
            if tiling[axis].startswith("S"):
                tile = self.allgather(tile, axis, int(tiling[axis][1]))
        return tile


def _numbers(tile: Tensor) -> Tensor:
    """Truth values as numbers, of which the largest is whether one holds and the least whether all do."""
    return tile.to(torch.uint8) if tile.dtype == torch.bool else tile


def unplanned(planned: dict[str, int], workers: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each worker that `counted` other collectives than those planned."""
    return [
        f"worker {rank} ran the collectives {each['counted']}, the plan has {planned}"
        for rank, each in enumerate(workers)
        if each["counted"] != planned
    ]


def counts_of(counting: CommDebugMode) -> dict[str, int]:
    """How often each collective ran, by its name."""
    found = {str(name).rpartition(".")[2]: count for name, count in counting.get_comm_counts().items()}
    return dict(sorted(found.items()))


def workers(mesh: Sequence[Sequence[object]]) -> int:
    """How many workers a mesh of [name, size] has."""
    return prod(int(str(size)) for _, size in mesh)
