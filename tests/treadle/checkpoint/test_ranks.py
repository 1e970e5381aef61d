"""Checkpoints of DistributedDataParallel and FSDP2 models on two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn, optim
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.treadle.checkpoint.small import ListedMemory, decisions
from treadle.checkpoint.messages import count_messages
from treadle.checkpoint.persistent import PersistentSaves
from treadle.checkpoint.resume import resume
from treadle.checkpoint.states import TrainingStates
from treadle.checkpoint.training import Checkpoints
from treadle.runtime.launch import launch


def model_of(kind: str) -> nn.Module:
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
    if kind == "ddp":
        return DistributedDataParallel(model, bucket_cap_mb=0.005)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    return model


def step(model: nn.Module, optimizer: optim.Optimizer, rank: int) -> float:
    loss = model(torch.randn(8, 16) + rank).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def trained(rank: int, world: int, kind: str, folder: Path) -> dict[str, Any]:
    """Losses without checkpoints, with them and after resumes, and what was done meanwhile."""
    found: dict[str, Any] = {}
    model = model_of(kind)
    optimizer = optim.AdamW(model.parameters(), lr=0.02)
    torch.manual_seed(rank)
    found["alone"] = [step(model, optimizer, rank) for _ in range(8)]

    memory, group = ListedMemory(), distributed.new_group(backend="gloo")
    for name, total in (("kept", 5), ("memory", 8), ("storage", 8)):
        model = model_of(kind)
        optimizer = optim.AdamW(model.parameters(), lr=0.02)
        states = TrainingStates(model, optimizer, {})
        torch.manual_seed(rank)
        saves = PersistentSaves(folder, 10**18, states)
        if name == "storage" and rank == 1:
            memory.damaged.update(memory.kept)  # on one rank only
        resumed = resume(states, memory, saves, group)
        checkpoints = Checkpoints(states, decisions(), memory, saves, resumed, group)
        checkpoints.start([count_messages(model, checkpoints.count)])
        memory.calls.clear()
        losses = []
        for number in checkpoints.steps(total):
            if (name, number) == ("kept", 2):
                checkpoints.save()
            losses.append(step(model, optimizer, rank))
        checkpoints.close()
        found[name] = resumed.step, resumed.source, losses
        found[f"{name} calls"] = list(memory.calls)
    return found


@pytest.mark.slow  # two processes with PyTorch
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_losses_go_on_bit_by_bit_and_pieces_follow_messages(kind: str, tmp_path: Path) -> None:
    for rank, found in enumerate(launch(2, trained, (kind, tmp_path), timeout=60)):
        alone = found["alone"]
        assert found["kept"] == (0, "begin", alone[:5])
        assert found["memory"] == (4, "memory", alone[4:])
        assert found["storage"] == (2, "storage", alone[2:]), f"rank {rank}"
        calls = found["kept calls"]
        third = calls[calls.index(("begin", 3)) :]
        spans = [value for call, value in third[: third.index("drain")] if call == "span"]
        assert spans == sorted(spans)
        assert {0, 1, 2} <= set(spans), "each span is released on its own once the messages are known"
