"""Workers that train with a compiled server: weights equal to local steps with the mean gradient, losses, and ends."""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import treadle.server
from tests.treadle.server.serving import CARRIERS, plan_for, served
from tests.treadle.server.test_training import Net, equal, net
from treadle.planner.documents.server_parts import Carrier
from treadle.planner.errors import CheckFailed
from treadle.runtime.server.serving import ServeOptions
from treadle.runtime.server.worker import Worker

STEPS = 4


def gradients(model: nn.Module, worker: int, step: int) -> None:
    """Of a batch that differs by worker and step; one layer is used by some workers only, in some steps by none."""
    batch = torch.randn(4, 3, generator=torch.Generator().manual_seed(100 * step + worker))
    model(batch, rare=(step + worker) % 3 == 2 and step != 1).square().sum().backward()


def mean_step(model: Net, optimizer: optim.Optimizer, of_workers: list[list[Tensor | None]]) -> None:
    """A local step with the mean of all workers' gradients, in their order."""
    trained = [each for each in model.parameters() if each.requires_grad]
    for parameter, parts in zip(trained, zip(*of_workers, strict=True), strict=True):
        total = None
        for part in parts:
            term = torch.zeros_like(parameter) if part is None else part
            total = term if total is None else total + term
        parameter.grad = None if all(part is None for part in parts) else total / len(parts)
    optimizer.step()


def expected(kind: str, workers: int) -> tuple[Net, optim.Optimizer]:
    model, optimizer = net(kind)
    for step in range(STEPS):
        of_workers: list[list[Tensor | None]] = []
        for worker in range(workers):
            model.zero_grad()
            gradients(model, worker, step)
            of_workers.append([each.grad for each in model.parameters() if each.requires_grad])
        mean_step(model, optimizer, of_workers)
    return model, optimizer


def trained(model: Net, optimizer: optim.Optimizer, address: Any, worker: int) -> tuple[Any, Any]:
    """Weights, and the optimizer's states after its training is closed."""
    with torch.no_grad():
        model.first.weight.add_(worker)  # those of worker 0 count
    training = treadle.server.attach(model, optimizer, address, worker=worker)
    for step in range(STEPS):
        optimizer.zero_grad()
        gradients(model, worker, step)
        optimizer.step()
        if step == 1 and worker == 0:  # one worker may ask for states while others go on
            optimizer.state_dict()
    training.close()
    return copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())


@pytest.mark.parametrize("carrier", CARRIERS)
def test_three_workers_train_as_one_does_with_the_mean_gradient(carrier: Carrier, tmp_path: Path) -> None:
    plan, made = plan_for(Net(), "sgd", 3, carrier), [net("sgd") for _ in range(3)]
    with ThreadPoolExecutor(3) as pool, served(tmp_path, {"job": plan}) as files:
        found = [*pool.map(lambda worker: trained(*made[worker], files["job"], worker), range(3))]
    model, optimizer = expected("sgd", 3)
    for weights, states in found:
        assert equal(weights, model.state_dict())
        assert equal(states, optimizer.state_dict())


def test_a_lost_worker_ends_the_others_with_its_number(tmp_path: Path) -> None:
    plan = plan_for(Net(), "sgd", 2)
    with served(tmp_path, {"job": plan}) as files:
        first, second = (Worker(files["job"], worker) for worker in range(2))
        second.client.close()
        for key in range(len(first.layout.keys)):
            first.push_pull(key)
        with pytest.raises(CheckFailed, match=r"worker 0 in step 1: .*worker 1"):
            first.finish()
        first.close()


def test_a_server_that_ends_is_named(tmp_path: Path) -> None:
    plan = plan_for(Net(), "sgd", 2)
    with served(tmp_path, {"job": plan}) as files:
        worker = Worker(files["job"], 0)
        for key in range(len(worker.layout.keys)):
            worker.push_pull(key)
    with pytest.raises(CheckFailed, match=r"worker 0 in step 1: .*server"):
        worker.finish()
    worker.close()


def test_a_lost_worker_rejoins_at_the_servers_step(tmp_path: Path) -> None:
    plan, made = plan_for(Net(), "adam", 2), [net("adam") for _ in range(3)]
    lost = threading.Event()

    def work(worker: int) -> Any:
        model, optimizer = made[worker]
        training = treadle.server.attach(model, optimizer, files["job"], worker=worker)
        for step in range(STEPS):
            if worker == 1 and step == 2:
                training.worker.client.close()
                lost.set()
                model, optimizer = made[2]
                training = treadle.server.attach(model, optimizer, files["job"], worker=1, rejoin=True)
                assert training.step == 2
            optimizer.zero_grad()
            gradients(model, worker, step)
            optimizer.step()
        training.close()
        return copy.deepcopy(model.state_dict())

    with ThreadPoolExecutor(2) as pool, served(tmp_path, {"job": plan}, ServeOptions(rejoin=True)) as files:
        found = [each.result(timeout=60) for each in [pool.submit(work, worker) for worker in (1, 0)]]
    model, _ = expected("adam", 2)
    assert lost.is_set()
    assert all(equal(weights, model.state_dict()) for weights in found)
