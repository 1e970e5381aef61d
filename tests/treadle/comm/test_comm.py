"""treadle.comm on real processes: results are torch.distributed's, choices are reported, fallbacks are logged once."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.planner.passes.collective.build import MESH, line
from tests.planner.plans import collective_plan
from treadle.codegen import targets
from treadle.codegen.emit import write
from treadle.comm.library import load
from treadle.planner.documents import store
from treadle.planner.documents.pattern import Part, Pattern
from treadle.planner.errors import InputError
from treadle.runtime.launch import launch
from treadle.runtime.torch_names import all_gather_single, reduce_scatter_single

RANKS = 3
LATE_SECONDS = 8.0
COUNTS = ((1, 2, 0), (0, 0, 3), (1, 0, 0))
SIZES = {"allgather": 2**12, "broadcast": 2**12, "gather": 2**12, "reduce": 2**12}


def make(folder: Path, collective: str, **more: Any) -> None:
    size = None if "pattern" in more else SIZES.get(collective, 3 * 2**12)
    plan = collective_plan(collective, line(RANKS), MESH, size_bytes=size, instances=1, **more)
    write(targets.generate(plan, "plan.json"), folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for each collective, on a line of three ranks; roots are 1."""
    home = tmp_path_factory.mktemp("artefacts")
    for collective in ("allreduce", "allgather", "reducescatter", "alltoall"):
        make(home / collective, collective)
    for collective in ("broadcast", "reduce", "gather", "scatter"):
        make(home / collective, collective, root=1)
    make(home / "moe", "alltoallv", pattern=Pattern(version=1, name="moe", unit="1KiB", counts=COUNTS))
    parts = (Part((0, 1), (2,)), Part((2,), (0, 1)))
    make(home / "reload", "custom", pattern=Pattern(version=1, name="reload", unit="1KiB", chunks=parts))
    return home


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def calls(rank: int, world: int, folder: str, folders: list[str]) -> dict[str, Any]:
    """Every call, compared with torch's; the names of those that differ, the log, and some explanations."""
    import torch
    from torch import Tensor, distributed
    from torch.distributed import ReduceOp

    import treadle
    from treadle import comm

    heard = Lines()
    logging.getLogger("treadle.comm").addHandler(heard)
    comm.all_reduce(torch.ones(2))
    refused = ""
    try:
        comm.init(folders[rank])
    except InputError as error:
        refused = str(error)
    comm.init(folder)
    assert treadle.comm is comm
    wrong: list[str] = []

    def data(count: int, dtype: Any, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(100 * seed + rank)
        # Small whole numbers: every dtype sums them exactly, in any order.
        return torch.randint(-8, 8, (count,), generator=generator).to(dtype)

    def same(name: str, ours: Tensor, theirs: Tensor) -> None:
        if not torch.equal(ours, theirs):
            wrong.append(f"{name}: {ours.tolist()[:6]} for {theirs.tolist()[:6]}")

    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64):
        for op, known in (("sum", ReduceOp.SUM), ("min", ReduceOp.MIN), ("max", ReduceOp.MAX), ("avg", ReduceOp.SUM)):
            for count in (0, 1, 7, 3000):
                given = data(count, dtype)
                ours, theirs = given.clone(), given.clone()
                comm.all_reduce(ours, op)
                distributed.all_reduce(theirs, known)
                if op == "avg" and not dtype.is_floating_point:
                    theirs = theirs.div(world, rounding_mode="trunc")
                elif op == "avg":
                    error = (ours.double() - theirs.double() / world).abs().max() if count else torch.zeros(())
                    if error > 16 * torch.finfo(dtype).eps:
                        wrong.append(f"avg {dtype} {count}: off by {error}")
                    continue
                same(f"all_reduce {op} {dtype} {count}", ours, theirs)
    for count in (1, 7, 1000):
        given = data(count, torch.float32, count)
        ours, theirs = given.new_empty(count * world), given.new_empty(count * world)
        comm.all_gather_into_tensor(ours, given)
        all_gather_single(theirs, given)
        same(f"all_gather {count}", ours, theirs)
        whole = data(count * world, torch.float32, count)
        ours, theirs = given.new_empty(count), given.new_empty(count)
        comm.reduce_scatter_tensor(ours, whole, "max")
        reduce_scatter_single(theirs, whole, ReduceOp.MAX)
        same(f"reduce_scatter {count}", ours, theirs)
        ours, theirs = torch.empty_like(whole), torch.empty_like(whole)
        comm.all_to_all_single(ours, whole)
        distributed.all_to_all_single(theirs, whole)
        same(f"all_to_all {count}", ours, theirs)
        out_sizes, in_sizes = [row[rank] * count for row in COUNTS], [n * count for n in COUNTS[rank]]
        ours, theirs = given.new_empty(sum(out_sizes)), given.new_empty(sum(out_sizes))
        comm.all_to_all_single(ours, whole[: sum(in_sizes)], out_sizes, in_sizes)
        distributed.all_to_all_single(theirs, whole[: sum(in_sizes)], out_sizes, in_sizes)
        same(f"all_to_all by splits {count}", ours, theirs)
        ours, theirs = given.clone(), given.clone()
        comm.broadcast(ours, 1)
        distributed.broadcast(theirs, 1)
        same(f"broadcast {count}", ours, theirs)
        ours, theirs = given.clone(), given.clone()
        comm.reduce(ours, 1)
        distributed.reduce(theirs, 1)
        same(f"reduce {count}", ours, theirs if rank == 1 else given)
        rows = [[torch.empty_like(given) for _ in range(world)] if rank == 1 else None for _ in range(2)]
        comm.gather(given, rows[0], 1)
        distributed.gather(given, rows[1], 1)
        same(f"gather {count}", torch.cat(rows[0] or [given]), torch.cat(rows[1] or [given]))
        ours, theirs = torch.empty_like(given), torch.empty_like(given)
        cuts = list(whole.chunk(world)) if rank == 1 else None
        comm.scatter(ours, cuts, 1)
        distributed.scatter(theirs, cuts, 1)
        same(f"scatter {count}", ours, theirs)
    parts = {0: [5.0, 5.0], 1: [5.0, 5.0], 2: [7.0, 8.0]}[rank]
    same("exchange", comm.exchange(torch.tensor(parts)), torch.tensor([5.0, 5.0] if rank == 2 else [7.0, 8.0]))
    matrix = data(12, torch.float32).reshape(3, 4)
    theirs = matrix.t().contiguous()
    turned = matrix.t()
    comm.all_reduce(turned)
    distributed.all_reduce(theirs)
    same("not contiguous", turned.contiguous(), theirs)

    before = len(heard.lines)
    for _ in range(2):
        product, flag, moved = data(4, torch.float32).abs() + 1, torch.tensor([rank == 0]), torch.ones(3)
        expected = product.clone()
        distributed.all_reduce(expected, ReduceOp.PRODUCT)
        comm.all_reduce(product, ReduceOp.PRODUCT)
        same("product", product, expected)
        comm.all_reduce(flag, "max")
        comm.broadcast(moved, 0)
    spread = torch.ones(3)
    comm.all_to_all_single(torch.empty(3), spread, [1, 1, 1], [1, 1, 1])  # a plain alltoall
    comm.all_to_all_single(torch.empty(3 * (rank == 0) * 3), spread, [3 * (rank == 0)] * 3, [3, 0, 0])
    return {
        "refused": refused,
        "wrong": wrong,
        "early": heard.lines[:before],
        "fell back": heard.lines[before:],
        "explained": [
            str(comm.explain(torch.ones(1024))),
            str(comm.explain(torch.ones(1024), "broadcast", root=2)),
            str(comm.explain(torch.ones(4, dtype=torch.complex64))),
        ],
    }


@pytest.mark.slow
def test_calls_are_those_of_torch(folder: Path, tmp_path: Path) -> None:
    make(tmp_path / "allreduce", "allreduce")
    folders = [str(folder), str(tmp_path), str(folder)]
    for rank, seen in enumerate(launch(RANKS, calls, (str(folder), folders), timeout=180)):
        assert seen["wrong"] == []
        assert seen["refused"] == f"{folders[rank]}: rank 1 found other algorithms than rank 0, expected the same"
        own = "torch.distributed's own collective runs"
        assert seen["early"] == [f"all_reduce: {own}, treadle.comm.init was not called"]
        assert seen["fell back"] == [
            f"all_reduce: {own}, op PRODUCT is not one of sum, avg, min, max",
            f"all_reduce: {own}, bool is not a dtype that is executed",
            f"broadcast: {own}, the plan is for root 1, not 0",
            f"all_to_all_single with split sizes: {own}, the sizes are no multiple of the plan's counts",
        ]
        taken, root, dtype = seen["explained"]
        assert taken.startswith("allreduce of 4 KiB: allreduce/allreduce_inplace.xml, for any size, predicted ")
        assert root == "broadcast of 4 KiB: torch.distributed, the plan is for root 1, not 2"
        assert dtype == "allreduce of 32 B: torch.distributed, complex64 is not a dtype that is executed"


def train(rank: int, world: int, folder: str) -> list[list[float]]:
    return [steps(rank, folder, hooked) for hooked in (False, True)]


def steps(rank: int, folder: str, hooked: bool) -> list[float]:
    """Losses and parameters of a few steps of a small model, in float64."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from treadle import comm

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3)).double()
    model = DistributedDataParallel(net, bucket_cap_mb=0.005)
    if hooked:
        comm.init(folder)
        model.register_comm_hook(None, comm.ddp_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + rank)
    seen = []
    for _ in range(4):
        loss = model(torch.randn(8, 20, dtype=torch.float64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    if hooked:
        assert comm.explain(torch.ones(99, dtype=torch.float64)).algorithm is not None
        comm.shutdown()
    return [*seen, *(float(parameter.detach().sum()) for parameter in net.parameters())]


@pytest.mark.slow
def test_a_training_loop_with_the_hook_is_plain_ddp(folder: Path) -> None:
    plain, hooked = zip(*launch(RANKS, train, (str(folder),), timeout=120), strict=True)
    assert hooked[0][4:] == hooked[1][4:] == hooked[2][4:]
    for one, other in zip(plain, hooked, strict=True):
        assert one == pytest.approx(other, rel=1e-12)


def test_what_cannot_be_loaded(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected one for 4"):
        load(folder, 4)
    with pytest.raises(InputError, match="or a folder of such folders"):
        load(tmp_path, 3)
    from treadle import comm

    with pytest.raises(InputError, match=r"call torch.distributed.init_process_group first"):
        comm.init(folder)


def test_of_several_plans_the_soonest_is_taken(folder: Path, tmp_path: Path) -> None:
    slow, fast = line(RANKS), line(RANKS)
    from msgspec.structs import replace

    slow = replace(slow, links=tuple(replace(link, alpha_us=50.0, beta_us_per_MB=1.0) for link in slow.links))
    for name, hardware in (("large", slow), ("small", fast)):
        plan = collective_plan("allreduce", hardware, MESH, size_bytes=3 * 2**12, instances=1)
        write(targets.generate(plan, "plan.json"), tmp_path / name)
    library = load(tmp_path, RANKS)
    for size, wanted in ((2**10, "small"), (2**28, "large")):
        algorithm, choice = library.choose("allreduce", size, inplace=True)
        assert algorithm is not None
        assert algorithm.name == choice.algorithm == f"{wanted}/allreduce_inplace.xml"
        assert choice.reason.startswith("the shortest predicted of 2")
        assert choice.others


def test_a_selection_serves_its_ranges_and_nothing_outside(tmp_path: Path) -> None:
    from treadle.codegen.collective.selection_files import generate_selection
    from treadle.planner.documents.plan import InputRef
    from treadle.planner.documents.selection import Entry, Selection

    plan = collective_plan("allgather", line(RANKS), MESH, size_bytes=2**12)
    reference = InputRef(file="0.plan.json", digest=store.digest(plan))
    entries = tuple(
        Entry(
            min_bytes=low,
            max_bytes=high,
            plan=reference,
            method="milp",
            protocol="Simple",
            instances=instances,
            predicted_us=(1.0, 2.0),
            bound_us=(1.0, 1.0),
        )
        for low, high, instances in ((1024, 2047, 1), (2048, 4096, 2))
    )
    selection = Selection(
        version=1,
        collective="allgather",
        ranks=RANKS,
        nodes=1,
        tolerance=0.05,
        sizes=(1024, 4096),
        inputs={},
        entries=entries,
    )
    write(generate_selection(selection, "selection.json", {"0.plan.json": plan}), tmp_path / "all")
    library = load(tmp_path / "all", RANKS)
    for size, name in ((1024, "00"), (2047, "00"), (2048, "01"), (4096, "01")):
        assert library.choose("allgather", size, inplace=False)[1].algorithm == f"{name}-allgather.xml"
    for size in (1023, 4097):
        algorithm, choice = library.choose("allgather", size, inplace=False)
        assert algorithm is None
        assert choice.reason.startswith("the plans are for calls of 3 KiB to 12 KiB, this is one of ")


def without_a_compiler(rank: int, world: int, folder: str) -> tuple[list[str], float]:
    import torch

    from treadle import comm
    from treadle.planner.errors import MissingBackendError
    from treadle.runtime.collective.wire import groups

    handler = Lines()
    logging.getLogger("treadle.comm").addHandler(handler)

    def missing() -> None:
        if rank == 1:
            raise MissingBackendError("found no g++")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "library", missing)
        comm.init(folder)
        for _ in range(2):
            tensor = torch.ones(3 * 2**10)
            comm.all_reduce(tensor)
    comm.shutdown()
    return handler.lines, float(tensor[0])


@pytest.mark.slow
def test_without_a_compiler_on_one_rank_all_take_the_frameworks_collective(folder: Path) -> None:
    for lines, value in launch(RANKS, without_a_compiler, (str(folder / "allreduce"),), timeout=60):
        assert lines == ["all_reduce: torch.distributed's own collective runs, rank 1: found no g++"]
        assert value == RANKS


def interrupted(rank: int, world: int, folder: str) -> float:
    """Rank 0 gets Ctrl-C while a call waits for one that is in the background; seconds until both have ended."""
    import torch
    from torch import distributed

    from treadle import comm
    from treadle.comm import collectives, hook

    comm.init(folder)
    comm.all_reduce(torch.ones(3 * 2**10))
    if rank:
        time.sleep(LATE_SECONDS)
        return 0.0
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    started = time.monotonic()
    hook.started(torch.ones(3 * 2**10), distributed.group.WORLD)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        comm.all_reduce(torch.ones(3 * 2**10))
    assert collectives._loaded is not None
    collectives._loaded.planned.lane.close()
    return time.monotonic() - started


@pytest.mark.slow
def test_an_interrupt_ends_the_call_in_the_background_too(folder: Path) -> None:
    """Otherwise the process could not end before the other ranks call."""
    assert launch(RANKS, interrupted, (str(folder / "allreduce"),), timeout=60)[0] < LATE_SECONDS / 2
