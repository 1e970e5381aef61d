"""Dropout of tiles keeps what one process would keep, whatever the order of elements in memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from treadle.runtime.tiling.collectives import Mesh


def mesh_of(*coordinate: int) -> Mesh:
    sizes = (2,) * len(coordinate)
    group = SimpleNamespace(group_name="")
    facts = {"shape": sizes, "ndim": len(sizes), "device_type": "cpu"}
    like = SimpleNamespace(**facts, get_coordinate=lambda: coordinate, get_group=lambda axis: group)
    return Mesh(cast("Any", like))


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_every_worker_keeps_its_part_of_what_one_process_draws(order: tuple[int, int, int]) -> None:
    x = torch.rand(4, 6, 8).permute(order)
    torch.manual_seed(0)
    wanted, kept = torch.ops.aten.native_dropout(x, 0.4, True)
    for worker in range(2):
        mesh = mesh_of(worker)
        torch.manual_seed(0)
        found = mesh.native_dropout(mesh.tile(x, ["S1"]), 0.4, True, list(x.shape), list(kept.stride()), ["S1"])
        assert torch.allclose(found[0], mesh.tile(wanted, ["S1"]))
        assert torch.equal(found[1], mesh.tile(kept, ["S1"]))
