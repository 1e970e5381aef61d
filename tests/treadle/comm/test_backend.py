"""The backend `treadle` in real processes: results are those of gloo, and planned collectives really ran."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed import HashStore, ReduceOp

from tests.planner.passes.collective.build import MESH, line
from tests.planner.plans import collective_plan
from tests.treadle.comm.test_comm import Lines
from treadle import comm
from treadle.codegen import targets
from treadle.codegen.emit import write
from treadle.comm import plans
from treadle.comm.work import OwnWork
from treadle.planner.errors import InputError
from treadle.runtime.launch import launch

OWN = "torch.distributed's own collective runs"
REGULAR = ("allreduce", "allgather", "reducescatter", "alltoall")
ROOTED = ("broadcast", "reduce", "gather", "scatter")


def make(home: Path, collective: str, ranks: int, **more: Any) -> None:
    plan = collective_plan(collective, line(ranks), MESH, size_bytes=ranks * 2**12, instances=1, **more)
    write(targets.generate(plan, "plan.json"), home / f"{collective}-{ranks}")


def begin(backend: str, store: str, rank: int, world: int, plans: str | None = None) -> None:
    """End all process groups and begin again."""
    distributed.barrier()
    distributed.destroy_process_group()
    options = None if plans is None else comm.GroupOptions(plans)
    distributed.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=world, pg_options=options
    )


def data(count: int, dtype: Any = torch.float32, seed: int = 0) -> Tensor:
    """Small whole numbers: every dtype sums them exactly, in any order."""
    generator = torch.Generator().manual_seed(100 * seed + distributed.get_rank())
    return torch.randint(-8, 8, (count,), generator=generator).to(dtype)


def results(rank: int, world: int) -> dict[str, Any]:
    """What every call of torch.distributed gives."""
    found: dict[str, Any] = {}

    def keep(name: str, *tensors: Tensor) -> None:
        found[name] = [tensor.tolist() for tensor in tensors]

    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64):
        for op in (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.PRODUCT, ReduceOp.AVG):
            refused = op == ReduceOp.AVG or (op != ReduceOp.SUM and dtype in (torch.bool, torch.complex64))
            if refused and not dtype.is_floating_point:
                continue  # by gloo
            tensor = data(301).abs().to(dtype)
            distributed.all_reduce(tensor, op)
            keep(f"all_reduce {dtype} {op}", tensor)
    for asynchronous in (False, True):
        given, whole = data(7, seed=1), data(7 * world, seed=2)
        rows = [torch.empty(7) for _ in range(world)]
        gathered, part, mixed = torch.empty(7 * world), torch.empty(7), torch.empty(7 * world)
        summed, moved, reduced = given.clone(), given.clone(), given.clone()
        listed, scattered, swapped = torch.empty(7), torch.empty(7), [torch.empty(7) for _ in range(world)]
        split = torch.empty((world - rank) * 2 * world)
        root = rank == 1
        works = [
            distributed.all_reduce(summed, async_op=asynchronous),
            distributed.all_gather(rows, given, async_op=asynchronous),
            distributed.all_gather_into_tensor(gathered, given, async_op=asynchronous),
            distributed.reduce_scatter_tensor(part, whole, ReduceOp.AVG, async_op=asynchronous),
            distributed.reduce_scatter(listed, list(whole.chunk(world)), async_op=asynchronous),
            distributed.all_to_all_single(mixed, whole, async_op=asynchronous),
            all_to_all(swapped, list(whole.chunk(world)), asynchronous),
            distributed.all_to_all_single(
                split, whole[: sum(2 * (world - to) for to in range(world))],
                [2 * (world - rank)] * world, [2 * (world - to) for to in range(world)], async_op=asynchronous,
            ),
            distributed.broadcast(moved, 1, async_op=asynchronous),
            distributed.reduce(reduced, 1, async_op=asynchronous),
            distributed.scatter(scattered, list(whole.chunk(world)) if root else None, 1, async_op=asynchronous),
        ]  # fmt: skip
        collected = [torch.empty(7) for _ in range(world)] if root else None
        works.append(distributed.gather(given, collected, 1, async_op=asynchronous))
        for work in works if asynchronous else ():
            work.wait()
            assert work.is_completed() or not isinstance(work, OwnWork)  # some of gloo never are
        distributed.barrier()
        keep(f"lists {asynchronous}", *rows, listed, *swapped, *(collected or []))
        keep(f"tensors {asynchronous}", summed, gathered, part, mixed, split, moved, scattered)
        keep(f"reduced {asynchronous}", *([reduced] if root else []))
    peer = torch.empty(3)
    if rank == 0:
        distributed.send(data(3), 1)
    elif rank == 1:
        distributed.recv(peer, 0)
        keep("received", peer)
    objects: list[Any] = [None] * world
    distributed.all_gather_object(objects, {"rank": rank})
    found["objects"] = objects
    return found


def all_to_all(outputs: list[torch.Tensor], inputs: list[torch.Tensor], asynchronous: bool) -> Any:
    """An alltoall of lists; gloo before 2.13 has none, and shows by one tensor what it would give."""
    try:
        return distributed.all_to_all(outputs, inputs, async_op=asynchronous)
    except RuntimeError as error:
        if "gloo does not support alltoall" not in str(error):
            raise
        joined, whole = torch.cat(outputs), torch.cat(inputs)
        work = distributed.all_to_all_single(joined, whole, async_op=asynchronous)
        if asynchronous:
            work.wait()
        for one, part in zip(outputs, joined.chunk(len(outputs)), strict=True):
            one.copy_(part)
        return work


def functional(rank: int, world: int) -> list[list[float]]:
    """The collectives that DTensor and compiled code call, with their waits."""
    from torch.distributed import _functional_collectives as funcol

    group, whole = distributed.group.WORLD, data(4 * world, seed=3)
    found = [
        funcol.all_reduce(whole, "avg", group),
        funcol.all_gather_tensor(whole, 0, group),
        funcol.reduce_scatter_tensor(whole, "sum", 0, group),
        funcol.all_to_all_single(whole, [4] * world, [4] * world, group),
        funcol.broadcast(whole, 1, group),
        *funcol.all_reduce_coalesced([whole, whole[:3] + 1], "sum", group),
        *funcol.all_gather_into_tensor_coalesced([whole, whole[:3].clone()], group),
        *funcol.reduce_scatter_tensor_coalesced([whole, whole.clone()], "sum", [0, 0], group),
    ]
    return [funcol.wait_tensor(tensor).tolist() for tensor in found]


def replicated(rank: int) -> list[float]:
    """Losses of DistributedDataParallel without a hook."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(9, 20), nn.Tanh(), nn.Linear(20, 2)))
    return trained(model, lambda: torch.randn(4, 9), rank)


def trained(model: nn.Module, batch: Callable[[], Tensor], seed: int) -> list[float]:
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    torch.manual_seed(1 + seed)
    for _ in range(3):
        loss = model(batch()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def walk(rank: int, world: int, folder: str, home: str) -> dict[str, Any]:
    heard = Lines()
    logging.getLogger("treadle.comm").addHandler(heard)
    seen: dict[str, Any] = {}
    for name, backend, found in (
        ("gloo", "gloo", None),
        ("treadle", "treadle", folder),
        ("mixed", "cpu:gloo,cuda:treadle", folder),
        ("plain", "treadle", None),
    ):
        heard.lines.clear()
        begin(backend, f"{home}/{name}", rank, world, found)
        seen[name] = [results(rank, world), functional(rank, world), replicated(rank)]
        seen[f"{name} lines"], seen[f"{name} summary"] = list(heard.lines), comm.summary()
        seen[f"{name} explained"] = str(comm.explain(torch.ones(8)))
    begin("treadle", f"{home}/again", rank, world, folder)
    alone = distributed.new_group([0])
    if rank == 0:
        distributed.all_reduce(torch.ones(3), group=alone)
    # As hooks of DistributedDataParallel do: a callback that calls the next collective and waits for it.
    first = distributed.all_reduce(torch.ones(3), async_op=True).get_future()
    chained = first.then(
        lambda done: distributed.all_reduce(done.value()[0], async_op=True).get_future().wait()[0].tolist()
    )
    seen["chained"] = chained.wait()
    # The ranks call different collectives: all of them are told, and only where they wait.
    tensor, output = torch.ones(8), torch.empty(8 * world)
    late = (
        distributed.all_reduce(tensor, async_op=True)
        if rank
        else distributed.all_gather_into_tensor(output, tensor, async_op=True)
    )
    with pytest.raises(Exception) as refused:
        late.wait()
    seen["error"] = [str(refused.value), type(refused.value).__name__, str(late.exception()).splitlines()[0]]
    distributed.barrier()
    with pytest.raises(InputError, match=r"found pg_options of str, expected treadle\.comm\.GroupOptions"):
        distributed.new_group(backend="treadle", pg_options="folder")
    distributed.barrier()
    distributed.destroy_process_group()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TREADLE_PLANS", f"{home}/nowhere" if rank else folder)
        with pytest.raises(InputError) as unloaded:
            distributed.init_process_group("treadle", init_method=f"file://{home}/bad", rank=rank, world_size=world)
        seen["unloaded"] = str(unloaded.value)
        patch.setenv("TREADLE_PLANS", folder)
        distributed.init_process_group("treadle", init_method=f"file://{home}/env", rank=rank, world_size=world)
        distributed.all_reduce(tensor)
    seen["by the environment"] = comm.summary().planned
    return seen


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plans for two and for four ranks; roots are 1."""
    home = tmp_path_factory.mktemp("plans")
    for ranks in (2, 4):
        for collective in REGULAR:
            make(home, collective, ranks)
    for collective in ROOTED:
        make(home, collective, 2, root=1)
    return home


@pytest.fixture(scope="module")
def seen(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launch(2, walk, (str(folder), str(tmp_path_factory.mktemp("stores"))), timeout=120)


@pytest.mark.parametrize("backend", ["treadle", "mixed", "plain"])
def test_every_call_gives_what_gloo_gives(seen: list[dict[str, Any]], backend: str) -> None:
    for each in seen:
        calls, functions, losses = each[backend]
        wanted, wanted_functions, wanted_losses = each["gloo"]
        assert {name: calls[name] for name in calls if calls[name] != wanted[name]} == {}
        assert functions == wanted_functions
        assert losses == pytest.approx(wanted_losses, rel=1e-6)


def test_planned_collectives_ran_and_every_other_call_says_why_not(seen: list[dict[str, Any]]) -> None:
    for each in seen:
        summary = each["treadle summary"]
        # Once for each call of `results`, at once and in the background, and what functions and training add.
        assert set(summary.planned) == {
            "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single",
            "broadcast", "reduce", "gather", "scatter",
        }  # fmt: skip
        assert summary.planned["all_to_all_single"] == 2 * 2 + 1
        assert summary.planned["all_reduce"] == 3 * 2 + 3 + 2 + 3 + 3
        assert summary.reasons == tuple(each["treadle lines"])
        assert each["treadle lines"] == [
            f"all_reduce: {OWN}, op PRODUCT is not one of sum, avg, min, max",
            f"all_reduce: {OWN}, uint8 is not a dtype that is executed",
            f"all_reduce: {OWN}, bool is not a dtype that is executed",
            f"all_to_all_single with split sizes: {OWN}, the sizes differ, and there is no plan for alltoallv",
            f"all_gather_into_tensor: {OWN}, uint8 is not a dtype that is executed",
            f"broadcast: {OWN}, the plan is for root 1, not 0",
        ]
        assert each["treadle explained"].startswith("allreduce of 32 B: allreduce-2/allreduce_inplace.xml, ")
        assert each["by the environment"] == {"all_reduce": 1}


def test_without_plans_for_a_device_a_group_is_a_plain_one(seen: list[dict[str, Any]]) -> None:
    for each in seen:
        for backend in ("mixed", "plain"):
            assert each[f"{backend} summary"].planned == {}
            assert each[f"{backend} explained"] == (
                "allreduce of 32 B: torch.distributed, its process group has no plans for such tensors"
            )
        assert each["mixed lines"] == []
        (line,) = each["plain lines"]
        assert line.startswith("backend treadle: found no folder of plans, expected one in TREADLE_PLANS or in ")


def test_callbacks_may_wait_for_other_calls(seen: list[dict[str, Any]]) -> None:
    assert [each["chained"] for each in seen] == [[4.0] * 3] * 2


def test_an_error_of_one_rank_reaches_all_where_they_wait(seen: list[dict[str, Any]]) -> None:
    other = "rank 0 called another collective, or with another size, type, op or place"
    messages = [each["error"][0] for each in seen]
    assert any(other in message or "rank 1 called another collective" in message for message in messages)
    for each in seen:
        message, kind, stored = each["error"]
        assert (message, kind) == (stored, "CheckFailed")
        assert "\n" not in message
        assert each["unloaded"].startswith("rank 1: ")
        assert "/nowhere: found no artefact.json" in each["unloaded"]


def mesh_walk(rank: int, world: int, folder: str, home: str) -> dict[str, Any]:
    """Sharded, tensor-parallel and expert-parallel training on two groups of two of four ranks, and over all four."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def net() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8), nn.Linear(8, 4))

    def batch() -> Tensor:
        return torch.randn(6, 8)

    seen: dict[str, Any] = {}
    for backend, found in (("gloo", None), ("treadle", folder)):
        begin(backend, f"{home}/{backend}", rank, world, found)
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        groups = {name: mesh[name].get_group() for name in ("dp", "tp")}
        model = net()
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        for layer in (model[2], model):
            fully_shard(layer, mesh=mesh["dp"])
        losses = [trained(model, batch, rank // 2)]
        whole = net()
        fully_shard(whole)  # over all four ranks
        losses.append(trained(whole, batch, rank))
        losses.append(trained(Experts(groups["tp"]), batch, rank))
        rows = distribute_tensor(torch.arange(64.0).reshape(8, 8), mesh["tp"], [Shard(0)])
        turned = rows.redistribute(placements=[Shard(1)]).redistribute(placements=[Replicate()])
        assert isinstance(turned, DTensor)
        part = distributed.new_group([1, 3])
        tensor = torch.full((5,), rank + 1.0)
        if rank in (1, 3):
            distributed.all_reduce(tensor, group=part)
        distributed.destroy_process_group(part)
        seen[backend] = [losses, turned.to_local().tolist(), tensor.tolist()]
        if backend == "treadle":
            summaries = {name: comm.summary(group) for name, group in (*groups.items(), ("world", None))}
            seen["planned"] = {name: each.planned for name, each in summaries.items()}
    return seen


class Experts(nn.Module):
    """Two experts on two ranks: each gets half of the rows of every rank, and sends them back."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.group, self.expert = group, nn.Linear(8, 8)

    def forward(self, rows: Tensor) -> Tensor:
        from torch.distributed import _functional_collectives as funcol

        half = [len(rows) // 2] * 2
        there = funcol.all_to_all_single_autograd(rows.requires_grad_(), half, half, self.group)
        return funcol.all_to_all_single_autograd(self.expert(there), half, half, self.group)


@pytest.mark.slow
def test_sharded_and_parallel_models_train_as_over_gloo(folder: Path, tmp_path: Path) -> None:
    for each in launch(4, mesh_walk, (str(folder), str(tmp_path)), timeout=240):
        losses, rows, summed = each["treadle"]
        for ours, theirs in zip(losses, each["gloo"][0], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-6)
        assert [rows, summed] == each["gloo"][1:]
        dp, tp, world = (each["planned"][name] for name in ("dp", "tp", "world"))
        # Two sharded layers in three steps, gathered again where a backward pass needs them.
        assert dp["all_gather_into_tensor"] >= 6
        assert dp["reduce_scatter_tensor"] == 6
        assert tp["all_reduce"] >= 3
        assert tp["all_to_all_single"] == 3 * (2 + 2)
        assert world["all_gather_into_tensor"] == world["reduce_scatter_tensor"] == 3


def test_ranks_agree_on_their_plans_before_they_connect(folder: Path) -> None:
    """By the store, here in threads of one process."""
    from concurrent.futures import ThreadPoolExecutor
    from types import SimpleNamespace

    def joined(folders: list[Any]) -> list[Any]:
        store = HashStore()

        def rank(number: int) -> Any:
            common = SimpleNamespace(
                store=store, group_rank=number, group_size=len(folders), global_ranks_in_group=[],
                timeout=timedelta(seconds=30),
            )  # fmt: skip
            try:
                return plans.planned_group(comm.GroupOptions(folders[number]), common, first=False)
            except InputError as error:
                return str(error)

        with ThreadPoolExecutor(len(folders)) as pool:
            return list(pool.map(rank, range(len(folders))))

    one = [group.planned for group in joined([folder, folder])]
    assert [len(each.algorithms) for each in one] == [15, 15]
    assert {len(algorithm.program.ranks) for each in one for algorithm in each.algorithms} == {2}
    assert joined([folder] * 3) == [None] * 3
    alike = f"{folder / 'allreduce-2'}: rank 1 found other algorithms than rank 0, expected the same"
    assert joined([folder / "allreduce-2", folder / "allgather-2"]) == [alike] * 2
