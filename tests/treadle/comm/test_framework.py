"""treadle.comm where no plan runs or a call is wrong: torch's results on any strides, errors on all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.planner.passes.collective.build import MESH, line
from tests.planner.plans import collective_plan
from treadle.codegen import targets
from treadle.codegen.emit import write
from treadle.runtime.launch import launch
from treadle.runtime.torch_names import all_gather_single, new_group, reduce_scatter_single


def make(home: Path, collective: str, ranks: int, **more: Any) -> None:
    plan = collective_plan(collective, line(ranks), MESH, size_bytes=ranks * 2**12, instances=1, **more)
    write(targets.generate(plan, "plan.json"), home / collective)


def walk(rank: int, world: int, folder: str, pair: str) -> dict[str, Any]:
    """Every case, compared with torch's on contiguous tensors."""
    import logging

    import torch
    from torch import Tensor, distributed
    from torch.distributed import ReduceOp

    from treadle import comm
    from treadle.planner.errors import InputError

    lines: list[str] = []
    logger = logging.getLogger("treadle.comm")
    logger.addFilter(lambda record: lines.append(record.getMessage()) or False)  # type: ignore[func-returns-value]
    wrong: list[str] = []
    sides = range(world)

    def strided(*shape: int, seed: int = 0) -> Tensor:
        """Whole numbers of a dtype that is not planned, every other one in memory."""
        generator = torch.Generator().manual_seed(10 * seed + rank)
        return torch.randint(1, 6, (*shape, 2), generator=generator).to(torch.uint8)[..., 1]

    def same(name: str, ours: Tensor, theirs: Tensor) -> None:
        if not torch.equal(ours, theirs):
            wrong.append(f"{name}: {ours.tolist()} for {theirs.tolist()}")

    def fallbacks(when: str) -> None:
        for op, plain in (("sum", ReduceOp.SUM), ("max", ReduceOp.MAX), (ReduceOp.PRODUCT, ReduceOp.PRODUCT)):
            ours, given = strided(4), strided(4).contiguous()
            theirs = given.clone()
            comm.all_reduce(ours, op)
            distributed.all_reduce(theirs, plain)
            same(f"{when}: all_reduce {op}", ours, theirs)
            ours, theirs = strided(4), given.clone()
            comm.reduce(ours, 2, op)
            distributed.reduce(theirs, 2, plain)
            same(f"{when}: reduce {op}", ours, theirs if rank == 2 else given)
            ours, theirs, whole = strided(2), given.new_empty(2), strided(6, seed=1)
            comm.reduce_scatter_tensor(ours, whole, op)
            reduce_scatter_single(theirs, whole.contiguous(), plain)
            same(f"{when}: reduce_scatter {op}", ours, theirs)
        ours, theirs = strided(4), strided(4).contiguous()
        comm.broadcast(ours, 2)
        distributed.broadcast(theirs, 2)
        same(f"{when}: broadcast", ours, theirs)
        ours, theirs = strided(6), torch.empty(6, dtype=torch.uint8)
        comm.all_gather_into_tensor(ours, strided(2))
        all_gather_single(theirs, strided(2).contiguous())
        same(f"{when}: all_gather", ours, theirs)
        for sizes in (None, [1, 1, 1]):
            ours, theirs = strided(2, 3).t(), torch.empty(3, 2, dtype=torch.uint8)
            comm.all_to_all_single(ours, strided(2, 3, seed=1).t(), sizes, sizes)
            distributed.all_to_all_single(theirs, strided(2, 3, seed=1).t().contiguous(), sizes, sizes)
            same(f"{when}: all_to_all {sizes}", ours, theirs)
        rows = [[strided(4, seed=2) for _ in sides], [strided(4, seed=2).contiguous() for _ in sides]]
        ours, theirs = strided(4), strided(4).contiguous()
        comm.scatter(ours, rows[0] if rank == 2 else None, 2)
        distributed.scatter(theirs, rows[1] if rank == 2 else None, 2)
        same(f"{when}: scatter", ours, theirs)
        comm.gather(strided(4), rows[0] if rank == 2 else None, 2)
        distributed.gather(strided(4).contiguous(), rows[1] if rank == 2 else None, 2)
        same(f"{when}: gather", torch.stack(rows[0]), torch.stack(rows[1]))

    def refused(work: Any) -> str:
        try:
            work()
        except InputError as error:
            return str(error).replace(folder, "FOLDER")
        return "not refused"

    fallbacks("before init")
    nowhere = f"{folder}/nowhere"
    inits = [refused(lambda: comm.init(nowhere if rank == 1 else folder))]
    comm.init(folder)
    fallbacks("after init")
    inits.append(refused(lambda: comm.init(nowhere if rank == 2 else folder)))
    lines.clear()
    comm.all_reduce(torch.ones(3))
    sparse = torch.tensor([0.0, rank, 1.0]).to_sparse()
    comm.all_reduce(sparse)
    same("sparse", sparse.to_dense(), torch.tensor([0.0, 3.0, 3.0]))
    logged = list(lines)

    given, three = torch.full((3,), 5.0), [torch.ones(3)] * 3
    calls = []
    for root in (1, 0):  # planned for root 1, the framework's for root 0
        for rows in (
            None,
            three[:2],
            [torch.ones(4)] * 3,
            [torch.ones(3).double()] * 3,
            [*three[:2], torch.ones(3, 1)],
        ):
            mine = rows if rank == root else None
            calls.append(refused(lambda mine=mine, root=root: comm.scatter(given, mine, root)))
            calls.append(refused(lambda mine=mine, root=root: comm.gather(given, mine, root)))
        calls.append(refused(lambda root=root: comm.scatter(given, three, root)))
    same("after a refused scatter", given, torch.full((3,), 5.0))
    sizes = [
        refused(lambda: comm.all_gather_into_tensor(torch.zeros(9, dtype=torch.int32), given)),
        refused(lambda: comm.all_gather_into_tensor(torch.zeros(8), given)),
        refused(lambda: comm.reduce_scatter_tensor(torch.zeros(2), torch.ones(7))),
        refused(lambda: comm.reduce_scatter_tensor(torch.zeros(2), torch.ones(9))),
        refused(lambda: comm.all_to_all_single(torch.zeros(7), torch.ones(7))),
        refused(lambda: comm.all_to_all_single(torch.zeros(6), torch.ones(9))),
        refused(lambda: comm.all_to_all_single(torch.zeros(3), torch.ones(3), [1, 1, 1], [1, 2])),
        refused(lambda: comm.all_to_all_single(torch.zeros(3), torch.ones(3), [1, 1, 2], [1, 1, 1])),
        refused(lambda: comm.broadcast(given, 3)),
        refused(lambda: comm.all_reduce(torch.ones(3, dtype=torch.bool), "avg")),
        refused(lambda: comm.reduce_scatter_tensor(given.to(torch.complex64), torch.ones(9) * 1j, ReduceOp.AVG)),
    ]

    # The two ranks in the other order where PyTorch keeps it: rank 0 of the group is rank 2 of the world.
    group = new_group([2, 1])
    grouped: dict[str, Any] = {"first": distributed.get_process_group_ranks(group)[0]} if rank else {}
    if rank:
        comm.init(pair, group=group)
        lines.clear()
        for name, dtype in (("planned", torch.float32), ("framework", torch.uint8)):
            summed, reduced = torch.full((4,), rank + 1, dtype=dtype), torch.full((4,), rank + 1, dtype=dtype)
            comm.all_reduce(summed)
            comm.reduce(reduced, 0)
            grouped[name] = [summed[0].item(), reduced[0].item()]
        grouped["logged"] = sorted({line.split(":")[0] for line in lines})
    else:
        grouped["outside"] = refused(lambda: comm.init(pair, group=group))
    # All process groups end and begin again, without a call of shutdown.
    distributed.destroy_process_group()
    distributed.init_process_group("gloo", init_method=f"file://{pair}/again", rank=rank, world_size=world)
    for load in (False, True):
        if load:
            comm.init(folder)
        whole = torch.ones(3)
        comm.all_reduce(whole)
        same(f"begun again, loaded {load}", whole, torch.full((3,), 3.0))
        if (comm.explain(whole).algorithm is not None) != load:
            wrong.append(f"begun again: {comm.explain(whole)}")
    return {"wrong": wrong, "inits": inits, "logged": logged, "calls": calls, "sizes": sizes, "grouped": grouped}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    home = tmp_path_factory.mktemp("three")
    for collective in ("allreduce", "alltoall"):
        make(home, collective, 3)
    for collective in ("broadcast", "gather", "scatter"):
        make(home, collective, 3, root=1)
    pair = tmp_path_factory.mktemp("two")
    make(pair, "allreduce", 2)
    make(pair, "reduce", 2, root=0)
    return launch(3, walk, (str(home), str(pair)), timeout=180)


def test_fallbacks_on_strided_tensors_are_those_of_torch(seen: list[dict[str, Any]]) -> None:
    for one in seen:
        assert one["wrong"] == []


def test_a_failed_init_fails_on_all_ranks_and_keeps_what_was_loaded(seen: list[dict[str, Any]]) -> None:
    for one in seen:
        for rank, message in zip((1, 2), one["inits"], strict=True):
            assert message.startswith(f"rank {rank}: FOLDER/nowhere: ")
        own = "torch.distributed's own collective runs"
        assert one["logged"] == [f"all_reduce: {own}, sparse_coo tensors are not executed as planned"]


def test_wrong_lists_are_refused_on_all_ranks(seen: list[dict[str, Any]]) -> None:
    wanted, like = [], "expected a tensor of shape (3,) and float32"
    for root, other in ((1, 0), (0, 1)):
        for text in (
            "found no {}, expected one of 3 tensors on the root",
            "found a {} of length 2, expected one tensor for each of 3 ranks",
            f"found a tensor of shape (4,) and float32 as entry 0 of {{}}, {like}",
            f"found a tensor of shape (3,) and float64 as entry 0 of {{}}, {like}",
            f"found a tensor of shape (3, 1) and float32 as entry 2 of {{}}, {like}",
        ):
            wanted += [f"rank {root}: {text.format(name)}" for name in ("scatter_list", "gather_list")]
        wanted.append(f"rank {other}: found a scatter_list, expected one on the root alone")
    for one in seen:
        assert one["calls"] == wanted


def test_wrong_sizes_and_averages_are_refused(seen: list[dict[str, Any]]) -> None:
    for one in seen:
        assert one["sizes"] == [
            "found as output a tensor of shape (9,) and int32, expected 9 elements of float32",
            "found as output a tensor of shape (8,) and float32, expected 9 elements of float32",
            "found a tensor of shape (7,) and float32, expected a first dimension that 3 ranks divide",
            "found as output a tensor of shape (2,) and float32, expected 3 elements of float32",
            "found a tensor of shape (7,) and float32, expected a first dimension that 3 ranks divide",
            "found as output a tensor of shape (6,) and float32, expected 9 elements of float32",
            "found input_split_sizes [1, 2], expected one size for each of 3 ranks, in all the first dimension of "
            "a tensor of shape (3,) and float32",
            "found output_split_sizes [1, 1, 2], expected one size for each of 3 ranks, in all the first dimension of "
            "a tensor of shape (3,) and float32",
            "found root 3, expected a rank of the group, 0 to 2",
            "found op 'avg' of tensors of torch.bool, expected integers or floats",
            "found op 'avg' of tensors of torch.complex64, expected integers or floats",
        ]


def test_calls_without_a_group_run_on_that_of_init(seen: list[dict[str, Any]]) -> None:
    assert seen[0]["grouped"] == {
        "outside": "treadle.comm.init: found a group without this process, expected a call on its ranks alone"
    }
    first = seen[1]["grouped"]["first"]
    for rank in (1, 2):
        kept = 5 if rank == first else rank + 1  # the sum arrives at rank 0 of the group
        assert seen[rank]["grouped"] == {
            "first": first,
            "planned": [5, kept],
            "framework": [5, kept],
            "logged": ["all_reduce", "reduce"],
        }
