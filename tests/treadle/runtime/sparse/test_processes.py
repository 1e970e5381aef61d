"""Sparse gradients between processes over gloo."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.treadle.runtime.sparse.gradients import coo, dense_sum, random_gradients
from tests.treadle.runtime.sparse.plans import decisions_of
from treadle.host.loopback import stay_on_loopback
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes.sparse.decisions import SparseDecisions
from treadle.runtime.launch import launch
from treadle.runtime.sparse.attached import attach_ddp
from treadle.runtime.sparse.exchange import SparseExchange

TABLES = (
    ("hashed", "zen", "coo", 60, 3),
    ("tree", "sparcml", "dense", 50, 1),
    ("late", "hierarchy-one-shot-parallel-imbalanced", "coo", 9, 2),
)
TIMEOUT = 120.0


def exchange_tables(rank: int, world: int, decisions: SparseDecisions) -> int:
    """Bytes that a rank sent, after it found the sums that it expected."""
    exchange = SparseExchange(decisions)
    for step in range(2):
        for name, _, form, units, width in TABLES:
            gradients = random_gradients(np.random.default_rng(step), world, form, units, width)
            got = exchange.exchange(name, gradients[rank])
            assert torch.equal(got.to_dense(), dense_sum(gradients))
    generator = np.random.default_rng(2)
    tables = {name: random_gradients(generator, world, form, units, width) for name, _, form, units, width in TABLES}
    sums = exchange.exchange_together({name: gradients[rank] for name, gradients in tables.items()})
    for name, gradients in tables.items():
        assert torch.equal(sums[name].to_dense(), dense_sum(gradients))
    exchange.close()
    return exchange.sent


def refused(rank: int, world: int, decisions: SparseDecisions) -> list[str]:
    """What every rank finds wrong with what the last one brings."""
    last, found = rank == world - 1, []
    exchange = SparseExchange(decisions)
    good = coo([], torch.zeros(0, 3), 60)
    bad = {
        "hashed": coo([], torch.zeros(0, 2), 60),
        "tree": torch.zeros(50, 1, dtype=torch.float64) if last else torch.zeros(50, 1),
        "none": good,
    }
    for name, gradient in bad.items():
        with pytest.raises(InputError) as error:
            exchange.exchange(name, gradient if last or name != "hashed" else good)
        found.append(str(error.value))
    assert exchange.exchange("hashed", good)._nnz() == 0
    with pytest.raises(InputError) as error:
        SparseExchange(decisions_of(*TABLES, machines=world, seeds=(rank, 1)))
    exchange.close()
    return [*found, str(error.value)]


def ends_early(rank: int, folder: str, decisions: SparseDecisions) -> None:
    """Rank 1 ends when the gradients of the plan are exchanged, and others wait for its dense ones."""
    stay_on_loopback()
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=3)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(60, 3, sparse=True), nn.Linear(3, 1)))
    hook = attach_ddp(model, decisions)
    model(torch.tensor([1])).sum().backward()
    if rank == 1:
        work = Mock(wait=lambda: os.kill(os.getpid(), signal.SIGKILL))
        hook._averaged = lambda values: work  # type: ignore[method-assign]
    steps = (
        lambda: model(torch.tensor([1])).sum().backward(),
        lambda: hook.exchange.exchange("0.weight", coo([1], torch.ones(1, 3), 60)),
    )
    for number, step in enumerate(steps):
        try:
            step()
        except CheckFailed as error:
            (Path(folder) / f"{number} {rank}").write_text(str(error))
    os._exit(0)


@pytest.mark.slow
def test_three_processes_add_up_their_gradients() -> None:
    sent = launch(3, exchange_tables, (decisions_of(*TABLES, machines=3),), TIMEOUT)
    assert all(sent)


@pytest.mark.slow
def test_two_nodes_of_two_processes_add_up_their_gradients() -> None:
    sent = launch(4, exchange_tables, (decisions_of(*TABLES, machines=2, devices=2),), TIMEOUT)
    assert all(sent)


@pytest.mark.slow
def test_a_gradient_or_plan_of_one_rank_is_refused_on_all_of_them() -> None:
    first, *others = launch(3, refused, (decisions_of(*TABLES, machines=3),), TIMEOUT)
    assert all(other == first for other in others)
    assert first == [
        "rank 2: found 120 elements of 'hashed', expected 180 as in the plan",
        "rank 2: found float64 gradients of 'tree', expected float32 ones",
        "rank 0: found gradient 'none', expected one of hashed, tree, late",
        "rank 1 found another plan than rank 0, expected the same",
    ]


@pytest.mark.slow
def test_a_rank_that_ends_is_named_by_the_others(tmp_path: Path) -> None:
    decisions = decisions_of(("0.weight", "zen", "coo", 60, 3), machines=3)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=ends_early, args=(rank, str(tmp_path), decisions)) for rank in range(3)]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(TIMEOUT)
        assert [process.exitcode for process in processes] == [0, -signal.SIGKILL, 0]
    finally:
        for process in processes:
            process.kill()
    for place in ("0 0", "0 2", "1 0", "1 2"):
        assert (tmp_path / place).read_text() == "rank 1 ended; gradients cannot be exchanged without it"
