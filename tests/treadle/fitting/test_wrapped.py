"""DDP, `fully_shard` and FullyShardedDataParallel around a fitted model: two processes over gloo."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import treadle
from tests.treadle.fitting.models import BATCH, Deep, batch_of, loss_of
from treadle.fitting.programs import PlannedForm
from treadle.runtime.launch import launch

WORLD = 2
ROWS = (BATCH, BATCH * 5 // 4, BATCH // 4, BATCH, BATCH * 5 // 4)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not distributed.is_gloo_available(), reason="this PyTorch has no gloo"),
]


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Deep()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return loss_of(self.model, x, y)


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


def wrapped(kind: str, module: nn.Module, world: int) -> nn.Module:
    if kind == "ddp":
        return DistributedDataParallel(module)
    if kind == "fully_shard":
        return fully_shard(module, mesh=init_device_mesh("cpu", (world,)))
    return FullyShardedDataParallel(module, use_orig_params=kind == "fsdp", device_id=torch.device("cpu"))


def losses_of(rank: int, module: nn.Module) -> list[float]:
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    found = []
    for step, rows in enumerate(ROWS):
        torch.manual_seed(WORLD * step + rank)
        loss = module(*batch_of(rows, seed=WORLD * step + rank))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def train(rank: int, world: int, kind: str) -> dict[str, Any]:
    """Losses with and without fit under one wrapper, the kinds of programs that ran, and the warnings."""
    lines = Lines()
    lines.setLevel(logging.WARNING)
    logging.getLogger("treadle.fit").addHandler(lines)
    fitted = treadle.fit(Deep(), batch_of(), budget="0.6x", loss=loss_of)
    losses = {
        "fitted": losses_of(rank, wrapped(kind, fitted, world)),
        "plain": losses_of(rank, wrapped(kind, WithLoss(), world)),
    }
    planned = [isinstance(found, PlannedForm) for found in fitted.programs.known.values()]
    return {**losses, "planned": planned, "warnings": lines.found}


@pytest.fixture
def trained(cache: object) -> Callable[[str], list[dict[str, Any]]]:
    return lambda kind: launch(WORLD, train, (kind,), timeout=240)


@pytest.mark.parametrize("kind", ["ddp", "fully_shard", "fsdp"])
def test_a_wrapped_model_trains_as_without_fit(trained: Callable[[str], list[dict[str, Any]]], kind: str) -> None:
    for found in trained(kind):
        assert found["fitted"] == pytest.approx(found["plain"], rel=1e-5)
        assert sorted(found["planned"]) == [False, True, True]
        assert not found["warnings"]


def test_flat_parameters_are_reported_with_what_to_do(trained: Callable[[str], list[dict[str, Any]]]) -> None:
    for found in trained("flat"):
        assert found["fitted"] == pytest.approx(found["plain"], rel=1e-5)
        (line,) = found["warnings"]
        assert "use_orig_params=True" in line
