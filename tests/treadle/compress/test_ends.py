"""Every option on real processes, and what is left when one of them is killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tests.planner.passes.collective.build import MESH, line
from tests.planner.plans import collective_plan
from tests.treadle.compress.test_models import Net, batch, decisions
from tests.treadle.runtime.compression.coders import Identity, IdentityCoders
from treadle import comm
from treadle.codegen import targets
from treadle.codegen.emit import write
from treadle.host.loopback import stay_on_loopback
from treadle.planner.errors import CheckFailed
from treadle.planner.passes.compression.options import options
from treadle.runtime.compression.attached import attach_ddp
from treadle.runtime.compression.group_run import Grid, GroupRun
from treadle.runtime.compression.setup import call_of
from treadle.runtime.launch import launch
from treadle.runtime.scope_groups import scope_groups

ELEMENTS = 13


def all_sequences(rank: int, world: int, folder: str) -> int:
    """The sequences, and a planned allreduce, which is torch.distributed's own until plans are loaded."""
    grid, call = Grid(rank, 2, 2), call_of(scope_groups(2))
    found = [each for tree in (False, True) for each in options(("device",), tree)]
    for number, steps in enumerate(found):
        run = GroupRun(steps, ELEMENTS, grid, call, {"device": Identity()})
        run.flat.copy_(torch.arange(ELEMENTS) * (rank + 1) + number)
        run.start(run.flat)
        for step in range(len(steps)):
            run.step(step)
        assert run.values is not None
        assert torch.equal(run.values, torch.arange(ELEMENTS) * 10.0 + 4 * number), steps
    run = GroupRun(("planned@flat",), ELEMENTS, grid, call)
    for loads in (False, True):
        if loads:
            comm.init(folder)
        run.flat.copy_(torch.arange(ELEMENTS) * (rank + 1))
        run.start(run.flat)
        run.step(0)
        assert torch.equal(run.flat, torch.arange(ELEMENTS) * 10.0)
    assert comm.summary().planned == {"all_reduce": 1}
    comm.shutdown()
    return len(found)


@pytest.mark.slow
def test_every_sequence_sums_exactly_over_gloo(tmp_path: Path) -> None:
    plan = collective_plan("allreduce", line(4), MESH, size_bytes=4 * 2**12, instances=1)
    write(targets.generate(plan, "plan.json"), tmp_path)
    assert launch(4, all_sequences, (str(tmp_path),), timeout=240) == [174] * 4


def killed(rank: int, world: int, folder: str) -> None:
    """Rank 1 ends in the middle of the second exchange; each other rank writes the error of its backward pass."""
    stay_on_loopback()
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    model = DistributedDataParallel(Net())
    attach_ddp(model, decisions(1, world), IdentityCoders())
    model(batch(rank, 0)).sum().backward()
    if rank == 1:
        weight = model.module.layers[2].weight
        weight.register_post_accumulate_grad_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    try:
        model(batch(rank, 0)).sum().backward()
    except CheckFailed as error:
        (Path(folder) / f"{rank}").write_text(str(error))
    os._exit(0)


@pytest.mark.slow
def test_a_rank_that_is_killed_in_an_exchange_ends_the_others_with_its_name(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=killed, args=(rank, 3, str(tmp_path))) for rank in range(3)]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(60)
        assert [process.exitcode for process in processes] == [0, -signal.SIGKILL, 0]
    finally:
        for process in processes:
            process.kill()
    expected = "rank 1 ended; gradients cannot be exchanged without it"
    assert [(tmp_path / rank).read_text() for rank in ("0", "2")] == [expected] * 2
