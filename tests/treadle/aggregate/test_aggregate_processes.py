"""Sums under aggregation plans on real processes, while plans change; models of DistributedDataParallel; what ranks say
of bad plans and of one another's end. All values are integers, so that sums are exact in any order."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import random
import signal
import weakref
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.planner.passes.aggregation.aggregation_plans import Groups, decisions_on, plan_of, problem_on
from treadle.aggregate import Aggregator, attach
from treadle.aggregate.aggregator import PlannedSums
from treadle.aggregate.tuning import MeasuredCalls, PlanChange
from treadle.codegen import targets
from treadle.codegen.emit import write
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes.aggregation.decisions import AggregationDecisions
from treadle.runtime.launch import launch

HALVES: Groups = ((0, 1, 2), (3, 4, 5))
RANKS, ITERATIONS, PERIOD = 6, 26, 2
TIMEOUT = 120.0


def planned(groups: Groups, chunks: int = 6, **fields: Any) -> AggregationDecisions:
    return decisions_on(problem_on(groups, **fields), groups, chunks)


class AnyPlan:
    """Decides on a plan at random each time, or that links are to be probed."""

    def __init__(self) -> None:
        self.dice = random.Random(1)
        self.measured: list[MeasuredCalls] = []
        self.probed: list[list[list[float]]] = []

    def decide(self, measured: MeasuredCalls) -> PlanChange:
        self.measured.append(measured)
        if len(self.measured) % 4 == 0:
            return PlanChange(probe_bytes=5000)
        hosts, parts = [*range(RANKS)], self.dice.randint(1, RANKS)
        self.dice.shuffle(hosts)
        groups = tuple(sorted(tuple(sorted(hosts[part::parts])) for part in range(parts)))
        return PlanChange(decisions=planned(groups, self.dice.randint(1, 20), connections=2))

    def regroup(self, bytes_per_second: list[list[float]]) -> PlanChange:
        self.probed.append(bytes_per_second)
        return PlanChange()


def switched(rank: int, world: int) -> tuple[tuple[int, ...], str, int, int]:
    """The first iterations of plans, a digest of inexact sums, probes, and open files that are left over."""
    torch.set_num_threads(1)
    decider = AnyPlan()
    sums = PlannedSums(planned(HALVES, connections=2), decider, PERIOD)
    inexact = sha256()
    for iteration in range(ITERATIONS):
        for size in (1, 1000, 50_001):
            seed = torch.Generator().manual_seed(1000 * iteration + rank)
            values = torch.randint(-(2**15), 2**15, (size,), generator=seed).to(torch.float64)
            expected = values.clone()
            distributed.all_reduce(expected)
            assert torch.equal(sums.all_reduce(values), expected), iteration
            floats = sums.all_reduce(torch.rand(size, generator=seed), op="avg")
            inexact.update(floats.numpy().tobytes())
        sums.step()
    found = sums.statistics()
    assert found.iterations == ITERATIONS
    sums.close()
    if rank == 0:
        assert all(each.time_ns > each.call_ns > 0 for each in decider.measured)
    files = _files()
    for _ in range(3):
        again = PlannedSums(planned(HALVES), decider, PERIOD)
        for _ in range(2 * PERIOD):
            again.all_reduce(torch.ones(1))
            again.step()
        again.close()
    return found.first_iterations, inexact.hexdigest(), len(decider.probed), _files() - files


def _files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
def test_sums_are_exact_and_the_same_on_all_ranks_while_plans_change() -> None:
    found = launch(RANKS, switched, timeout=TIMEOUT)
    firsts, digest, probes, _ = found[0]
    assert len(firsts) > 6
    assert probes > 0
    assert [each[0] for each in found] == [firsts] * RANKS
    assert [each[1] for each in found] == [digest] * RANKS
    assert max(each[3] for each in found) < 3, "the last ones may still be closing"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(40, 30), nn.Linear(30, 5)
        self.left = nn.Linear(40, 5)
        for parameter in self.parameters():
            parameter.data.copy_(torch.randint(-2, 3, parameter.shape))

    def forward(self, values: Tensor, skip: bool = False) -> Tensor:
        """values [B, 40] -> [B, 5]."""
        found: Tensor = self.second(self.first(values))
        return found if skip else found + self.left(values)


def trained(rank: int, world: int, folder: str) -> None:
    """Gradients are those of plain DistributedDataParallel, with buckets of several sizes, unused parameters, and
    accumulation; after `close` too."""
    torch.manual_seed(0)
    net = Net()
    options: tuple[dict[str, Any], ...] = ({}, {"static_graph": True}, {"find_unused_parameters": True})
    for each in options:
        plain, ours = (
            DistributedDataParallel(copy.deepcopy(net), bucket_cap_mb=0.002, **each)
            for _ in range(2)  # type: ignore[arg-type]
        )
        hook = attach(ours, folder, period=2)
        for step in range(8):
            if step == 7:
                hook.close()
            values = torch.randint(-4, 5, (world, 40), generator=torch.Generator().manual_seed(9 * step + rank)).float()
            for model in (plain, ours):
                if step == 3 and not each:
                    with model.no_sync():
                        model(values).sum().backward()
                model(values, bool(each.get("find_unused_parameters")) and step % 2 == 0).sum().backward()
            for mine, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
                assert (mine.grad is None) == (theirs.grad is None)
                assert mine.grad is None or torch.equal(mine.grad, theirs.grad), step
            for model in (plain, ours):
                model.zero_grad()
        assert hook.statistics().iterations == 7
    refused(rank, folder)
    plan = plan_of(planned(((0, 1), (2, 3))))
    before = attached_again(plan)
    assert all(attached_again(plan) <= before for _ in range(3))


def refused(rank: int, folder: str) -> None:
    """On all ranks alike."""
    plan = plan_of(planned(((0, 1), (2, 3))))
    for given, text in (
        (folder if rank else "none.json", r"rank 0: .*none\.json: cannot read"),
        (plan if rank else plan_of(planned(((0, 1, 2, 3),))), "rank 1 found another plan than rank 0"),
        (plan_of(planned(((0, 1), (2,)))), "found 4 ranks, expected the plan's 3"),
    ):
        with pytest.raises(InputError, match=text):
            Aggregator(given)
    with pytest.raises(InputError, match="found a Net, expected a DistributedDataParallel model"):
        attach(Net(), plan)
    model = DistributedDataParallel(Net())
    hook = attach(model, plan, autotune=False)
    with pytest.raises(InputError, match="found a communication hook, expected a model without one"):
        attach(model, plan)
    hook.close()
    with pytest.raises(InputError, match="rank 1 found another period or autotune than rank 0"):
        Aggregator(plan, period=2 + (rank == 1))
    with pytest.raises(InputError, match="found another period or autotune than rank 0"):
        Aggregator(plan, autotune=rank == 0)


def attached_again(plan: Plan[AggregationDecisions]) -> int:
    """Open files after a model was attached, trained, and given up."""
    model = DistributedDataParallel(Net())
    hook, net = attach(model, plan), weakref.ref(model.module)
    model(torch.ones(1, 40)).sum().backward()
    hook.close()
    hook.sums.stop()
    with pytest.raises(InputError, match="found a call after `close`, expected none"):
        hook.sums.all_reduce(torch.ones(1))
    with pytest.raises(InputError, match="found a call after `close`, expected none"):
        hook.sums.step()
    del model, hook
    gc.collect()
    assert net() is None
    distributed.barrier()
    return _files()


@pytest.mark.slow
def test_models_train_as_plain_ones_do_by_an_aggregation_plan(tmp_path: Path) -> None:
    plan = plan_of(planned(((0, 1), (2, 3))))
    write(targets.generate(plan, "plan.json"), tmp_path)
    launch(4, trained, (str(tmp_path),), timeout=TIMEOUT)


def killed(rank: int, folder: str) -> None:
    """Rank 1 ends after some iterations; the others write what they learn."""
    torch.set_num_threads(1)
    store = distributed.FileStore(f"{folder}/store", 3)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=3, timeout=timedelta(seconds=60))
    sums = Aggregator(plan_of(planned(((0, 1), (2,)))), period=2)
    try:
        for iteration in range(1000):
            sums.all_reduce(torch.ones(10_000))
            if rank == 1 and iteration == 4:
                os.kill(os.getpid(), signal.SIGKILL)
            sums.step()
    except CheckFailed as error:
        (Path(folder) / str(rank)).write_text(str(error))
    os._exit(0)


@pytest.mark.slow
def test_a_rank_that_is_killed_is_named(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=killed, args=(rank, str(tmp_path))) for rank in range(3)]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
        assert [process.exitcode for process in processes] == [0, -signal.SIGKILL, 0]
    finally:
        for process in processes:
            process.kill()
    for rank in (0, 2):
        assert "rank 1 " in (tmp_path / str(rank)).read_text().removeprefix(f"rank {rank}: ")
