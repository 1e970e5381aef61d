"""Every optimizer over every carrier, by a server and workers in processes of their own; DistributedDataParallel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn, optim
from torch.nn.parallel import DistributedDataParallel

import treadle.server
from tests.treadle.server.serving import CARRIERS, plan_for, served
from tests.treadle.server.test_served import gradients, mean_step
from tests.treadle.server.test_training import MAKERS, Net, equal, net
from treadle.runtime.launch import launch

pytestmark = pytest.mark.slow
WORKERS, STEPS = 3, 5


def of_all(model: nn.Module, rank: int) -> list[list[Tensor | None]]:
    """Every worker's gradients, by worker; None where there is none."""
    own = [each.grad for each in model.parameters() if each.requires_grad]
    found: list[Any] = [None] * WORKERS
    distributed.all_gather_object(found, own)
    return found


def trains_as_local(rank: int, world: int, jobs: dict[str, Path]) -> list[str]:
    """The jobs whose weights or states are not those of local steps with the mean gradient."""
    torch.set_num_threads(1)
    wrong = []
    for name, access in jobs.items():
        kind, _, how = name.partition("-")
        model, optimizer = net(kind)
        local, own = net(kind)
        whole: nn.Module = model
        if how == "ddp":
            whole = DistributedDataParallel(model, find_unused_parameters=True, bucket_cap_mb=1e-5)
        training = treadle.server.attach(whole, optimizer, access, worker=rank)
        scheduler, its = (optim.lr_scheduler.ExponentialLR(each, 0.9) for each in (optimizer, own))
        for step in range(STEPS):
            local.zero_grad()
            gradients(local, rank, step)
            mean_step(local, own, of_all(local, rank))
            optimizer.zero_grad()
            gradients(whole, rank, step)
            optimizer.step()
            scheduler.step()
            its.step()
        same = equal(model.state_dict(), local.state_dict()) and equal(optimizer.state_dict(), own.state_dict())
        training.close()
        if not same or not equal(optimizer.state_dict(), own.state_dict()):
            wrong.append(name)
    return wrong


def test_every_optimizer_over_every_carrier_is_as_local_steps(tmp_path: Path) -> None:
    jobs = {
        f"{kind}-{carrier}": plan_for(Net(), MAKERS[kind][0], WORKERS, carrier)
        for kind in MAKERS
        for carrier in CARRIERS
    }
    jobs["adamw-ddp"] = plan_for(Net(), "adam", WORKERS)
    with served(tmp_path, jobs) as files:
        assert launch(WORKERS, trains_as_local, (files,), timeout=300) == [[]] * WORKERS
