"""treadle.comm with tensors on GPUs, in real processes that share memory through the stand-in for the CUDA runtime.

The tensors are on the CPU and only taken for CUDA ones, the kernels are fibers. What stays untried without a GPU is
what `pretend` replaces: streams, nvcc, and what PyTorch says about a GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed
from torch._subclasses import FakeTensorMode
from torch.distributed import ReduceOp

from tests.planner.passes.collective.build import MESH, line
from tests.planner.plans import collective_plan
from tests.treadle.comm.test_comm import Lines
from tests.treadle.runtime.collective.native_cases import on_fake_cuda
from treadle import comm
from treadle.codegen import targets
from treadle.codegen.collective.cuda.tables import tables
from treadle.codegen.emit import write
from treadle.comm import cards, collectives, gpu
from treadle.comm.calls import CollectiveCall
from treadle.comm.library import LoadedAlgorithm
from treadle.planner.errors import CheckFailed, InputError, MissingBackendError
from treadle.runtime.collective.native import CompiledProgram, LaunchSettings
from treadle.runtime.collective.native_session import Session
from treadle.runtime.launch import launch
from treadle.runtime.torch_names import all_gather_single, reduce_scatter_single

pytestmark = pytest.mark.slow
RANKS = 2
OWN = "torch.distributed's own collective runs"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for each collective, roots are 1; the allreduce has two instances."""
    home = tmp_path_factory.mktemp("artefacts")
    for collective in ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "gather"):
        root = int(collective in ("broadcast", "reduce", "gather"))
        instances = 2 if collective == "allreduce" else 1
        plan = collective_plan(collective, line(RANKS), MESH, size_bytes=2**12, instances=instances, root=root)
        write(targets.generate(plan, "plan.json"), home / collective)
    return home


class HostStream:
    """Calls run at once, so that there is nothing to wait for."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def start(self, work: Callable[[], Any]) -> Any:
        return work()

    framework = start

    def queue(self, work: Callable[[], Any], call: CollectiveCall) -> torch.futures.Future[list[Tensor]]:
        work()
        future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        future.set_result(list(call.outputs))
        return future


def pretend(patch: pytest.MonkeyPatch, rank: int, library: str) -> list[str]:
    """Take CPU tensors for tensors on GPU `rank`; returns the names of the programs that are compiled from now on."""
    names: list[str] = []

    def compiled(algorithm: LoadedAlgorithm, _: torch.device, timeout: float) -> CompiledProgram:
        names.append(algorithm.name)
        program = algorithm.program
        return CompiledProgram(program, "fibers", Path(library), tables(program), LaunchSettings(timeout=timeout))

    patch.setattr(gpu, "on_gpu", lambda tensor: True)
    patch.setattr(gpu, "device_of", lambda tensor: torch.device("cuda", rank))
    patch.setattr(gpu, "identity", lambda device: f"GPU-{device.index}")
    patch.setattr(gpu, "compiler", lambda target: "nvcc")
    patch.setattr(gpu, "compiled", compiled)
    patch.setattr(gpu, "SerialStream", HostStream)
    return names


def ranks(rank: int, world: int, folder: str, library: str) -> dict[str, Any]:
    """Everything that the tests below look at."""
    heard = Lines()
    logging.getLogger("treadle.comm").addHandler(heard)
    seen: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        names = pretend(patch, rank, library)
        comm.init(folder)
        seen["compiled by init"] = list(names)
        ones = torch.ones(64)
        seen["explained"] = [str(comm.explain(ones)), str(comm.explain(ones.double()))]
        seen["wrong"] = differences(rank, world)
        seen["explained"].append(str(comm.explain(ones)))
        seen["compiled"] = sorted(names)
        seen["instances"] = len(
            collectives._loaded.planned.gpu.members["allreduce/allreduce_inplace.xml"]._library.table.blocks
        )
        heard.lines.clear()
        for _ in range(2):
            comm.all_reduce(torch.ones(3, dtype=torch.float64))
            comm.all_reduce(torch.ones(3), ReduceOp.PRODUCT)
            comm.gather(ones, [torch.empty(64) for _ in range(world)] if rank == 1 else None, 1)
            comm.all_to_all_single(torch.empty(4 - 4 * rank), torch.ones(2), [2 - 2 * rank] * 2, [2, 0])
        seen["fell back"] = list(heard.lines)
        patch.setattr(gpu, "device_of", lambda tensor: torch.device("cuda", 2))
        with pytest.raises(InputError) as refused:
            comm.all_reduce(ones.clone())
        seen["other GPU"] = str(refused.value)
        patch.setattr(gpu, "device_of", lambda tensor: torch.device("cuda", rank))
        seen["trained"] = trained(rank)
        comm.shutdown()
        seen["backend"] = over_the_backend(rank, world, folder)
    seen["reduced in place"] = []
    for on_gpus in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if on_gpus:
                pretend(patch, rank, library)
            comm.init(f"{folder}/reduce/reduce_inplace.xml")
            tensor = torch.full((5,), rank + 1.0)
            assert comm.explain(tensor, "reduce", root=1).algorithm == "reduce_inplace.xml"
            comm.reduce(tensor, 1)
            seen["reduced in place"].append(tensor.tolist())
            comm.shutdown()
    with pytest.MonkeyPatch.context() as patch:
        names = pretend(patch, rank, library)
        two_hosts(patch, rank)
        no_compiler(patch, 1)  # nothing is compiled for messages
        patch.setattr(gpu, "MESSAGES", "gloo")
        patch.setattr(gpu, "device_type", lambda: "cpu")
        comm.init(folder)
        seen["between hosts"] = differences(rank, world), str(comm.explain(ones)), list(names), trained(rank)
        seen["backend between hosts"] = over_the_backend(rank, world, folder)
        comm.shutdown()
    seen["faults"] = faults(rank, folder, library)
    seen["obstacles"] = {}
    for name, place in OBSTACLES.items():
        with pytest.MonkeyPatch.context() as patch:
            pretend(patch, rank, library)
            place(patch, rank)
            comm.init(folder)
            heard.lines.clear()
            for _ in range(2):
                tensor = torch.full((5,), rank + 1.0)
                comm.all_reduce(tensor)
            assert tensor.tolist() == [3.0] * 5
            seen["obstacles"][name] = [*heard.lines, str(comm.explain(tensor))]
            comm.shutdown()
    return seen


def message_of(call: Callable[[], Any]) -> str:
    with pytest.raises((CheckFailed, InputError)) as refused:
        call()
    return str(refused.value).splitlines()[0]


def faults(rank: int, folder: str, library: str) -> dict[str, Any]:
    """Tensors elsewhere, another job on the GPU of rank 1, and a call that rank 1 makes too late."""
    seen: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        pretend(patch, rank, library)
        comm.init(folder)
        seen["meta"] = message_of(lambda: comm.all_reduce(torch.empty(4, device="meta")))
        with FakeTensorMode():
            there = torch.empty(8, device="cuda:1")
        seen["output"] = message_of(lambda: comm.all_gather_into_tensor(there, torch.empty(4)))
        patch.setattr(cards, "claims", lambda card: {4711: 0.9} if rank else {})
        comm.all_reduce(torch.ones(4))
        seen["shared"] = str(comm.explain(torch.ones(4)))
        comm.shutdown()
        patch.setattr(cards, "claims", lambda card: {})
        for wrong in (0, -1.0, float("inf")):
            seen["limit"] = message_of(lambda wrong=wrong: comm.init(folder, timeout=wrong))
        comm.init(folder, timeout=0.5)
        tensor, gathered = torch.ones(4), torch.empty(4 * RANKS)
        comm.all_reduce(tensor)
        comm.all_gather_into_tensor(gathered, tensor)
        if not rank:
            comm.all_reduce(tensor)  # queued, and given up on the GPU
        distributed.barrier()
        seen["next"] = message_of(lambda: comm.all_reduce(torch.ones(4)))
        seen["after"] = message_of(lambda: comm.all_reduce(torch.ones(4)))
        comm.all_gather_into_tensor(gathered, torch.full((4,), rank + 1.0))
        seen["others"] = gathered.tolist()
        comm.shutdown()
        comm.init(folder, timeout=0.5)
        comm.all_reduce(tensor)
        if not rank:
            comm.all_reduce(tensor)
        distributed.barrier()
        seen["unseen"] = message_of(comm.shutdown)
    return seen


def differences(rank: int, world: int) -> list[str]:
    """Differences of every call from torch's own."""
    wrong: list[str] = []

    def data(count: int, dtype: Any = torch.float32) -> Tensor:
        generator = torch.Generator().manual_seed(10 * count + rank)
        # Small whole numbers: every dtype sums them exactly, in any order.
        return torch.randint(-8, 8, (count,), generator=generator).to(dtype)

    def same(name: str, ours: Tensor, theirs: Tensor) -> None:
        if not torch.equal(ours, theirs):
            wrong.append(f"{name}: {ours.tolist()[:6]} for {theirs.tolist()[:6]}")

    known = {"sum": ReduceOp.SUM, "min": ReduceOp.MIN, "max": ReduceOp.MAX, "avg": ReduceOp.SUM}
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32):
        for op, count in (("sum", 0), ("sum", 1), ("min", 7), ("max", 301), ("avg", 301)):
            ours, theirs = data(count, dtype), data(count, dtype)
            comm.all_reduce(ours, op)
            distributed.all_reduce(theirs, known[op])
            if op == "avg":
                theirs = theirs.div(world, rounding_mode=None if dtype.is_floating_point else "trunc")
            same(f"all_reduce {op} {dtype} {count}", ours, theirs)
    for count in (1, 500):
        given, whole = data(count), data(count * world)
        ours, theirs = torch.empty_like(whole), torch.empty_like(whole)
        comm.all_gather_into_tensor(ours, given)
        all_gather_single(theirs, given)
        same(f"all_gather {count}", ours, theirs)
        comm.all_to_all_single(ours, whole)
        distributed.all_to_all_single(theirs, whole)
        same(f"all_to_all {count}", ours, theirs)
        ours, theirs = torch.empty_like(given), torch.empty_like(given)
        comm.reduce_scatter_tensor(ours, whole, "max")
        reduce_scatter_single(theirs, whole, ReduceOp.MAX)
        same(f"reduce_scatter {count}", ours, theirs)
        ours, theirs = given.clone(), given.clone()
        comm.broadcast(ours, 1)
        distributed.broadcast(theirs, 1)
        same(f"broadcast {count}", ours, theirs)
        ours, theirs = given.clone(), given.clone()
        comm.reduce(ours, 1)
        distributed.reduce(theirs, 1)
        same(f"reduce {count}", ours, theirs if rank == 1 else given)
    turned, theirs = data(12).reshape(3, 4).t(), data(12).reshape(3, 4).t().contiguous()
    comm.all_reduce(turned)
    distributed.all_reduce(theirs)
    same("not contiguous", turned.contiguous(), theirs)
    return wrong


def over_the_backend(rank: int, world: int, folder: str) -> list[Any]:
    """Calls of torch.distributed itself, on a group of the backend `treadle`."""
    group = distributed.new_group(backend="treadle", pg_options=comm.GroupOptions(folder))
    rows, sums = [torch.empty(9) for _ in range(world)], torch.full((9,), rank + 1.0)
    split, wide = torch.empty(2 * world), torch.full((5,), rank + 1.0, dtype=torch.float64)
    distributed.all_reduce(sums, group=group)
    works = [
        distributed.all_gather(rows, torch.full((9,), rank + 1.0), group=group, async_op=True),
        distributed.all_to_all_single(split, torch.arange(4.0), [2] * world, [2] * world, group=group, async_op=True),
        distributed.all_reduce(wide, group=group, async_op=True),
    ]
    for work in works:
        work.wait()
    distributed.barrier(group=group)
    counts = comm.summary(group)
    values = [sums[0].item(), [row[0].item() for row in rows], split.tolist(), wide[0].item()]
    distributed.destroy_process_group(group)
    return [values, counts.planned, counts.fell_back]


def trained(rank: int) -> list[list[float]]:
    """Gradients of a small model after one step, without the hook and with it."""
    from torch.nn.parallel import DistributedDataParallel

    rows = []
    for hooked in (False, True):
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(9, 5), torch.nn.Linear(5, 1)))
        if hooked:
            model.register_comm_hook(None, comm.ddp_hook)
        model(torch.full((4, 9), rank + 1.0)).sum().backward()
        rows.append([value for each in model.parameters() for value in each.grad.flatten().tolist()])
    return rows


def _raise(error: Exception) -> Any:
    raise error


def no_compiler(patch: pytest.MonkeyPatch, rank: int) -> None:
    if rank == 1:
        patch.setattr(gpu, "compiler", lambda target: _raise(MissingBackendError("found no nvcc")))


def two_hosts(patch: pytest.MonkeyPatch, rank: int) -> None:
    patch.setattr(gpu, "host", lambda: f"host {rank}")


def one_gpu(patch: pytest.MonkeyPatch, rank: int) -> None:
    patch.setattr(gpu, "identity", lambda device: "GPU-0")


def refusing_compiler(patch: pytest.MonkeyPatch, rank: int) -> None:
    if rank == 0:
        patch.setattr(gpu, "compiled", lambda *_: _raise(CheckFailed("nvcc refused treadle_interpreter.cu")))


def broken_driver(patch: pytest.MonkeyPatch, rank: int) -> None:
    if rank == 1:
        patch.setattr(Session, "share", lambda *_: _raise(OSError("no driver")))


def no_peer_access(patch: pytest.MonkeyPatch, rank: int) -> None:
    if rank == 1:
        attach = Session.attach
        patch.setattr(Session, "attach", lambda self, other, handle: attach(self, other, bytes(len(handle))))


OBSTACLES: dict[str, Callable[[pytest.MonkeyPatch, int], None]] = {
    "rank 1: found no nvcc": no_compiler,
    "rank 0: PyTorch has no nccl, which carries messages between hosts": two_hosts,
    "ranks 0, 1 share one GPU, and each needs one of its own": one_gpu,
    "rank 0: nvcc refused treadle_interpreter.cu": refusing_compiler,
    "rank 1: no driver": broken_driver,
    "rank 1: treadle_allreduce_2_inplace: cudaIpcOpenMemHandle: invalid argument": no_peer_access,
}


@pytest.fixture(scope="module")
def seen(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        library = on_fake_cuda(processes=True, at_once=True)
    return launch(RANKS, ranks, (str(folder), str(library)), timeout=120)


def test_calls_are_those_of_torch(seen: list[dict[str, Any]]) -> None:
    for each in seen:
        assert each["wrong"] == []


def test_the_backend_runs_kernels_and_messages_too(seen: list[dict[str, Any]]) -> None:
    for rank, each in enumerate(seen):
        for name in ("backend", "backend between hosts"):
            values, planned, fell_back = each[name]
            assert values == [3.0, [1.0, 2.0], [2.0 * rank, 2.0 * rank + 1] * 2, 3.0]
            assert planned == {"all_reduce": 1, "all_gather_into_tensor": 1, "all_to_all_single": 1}
            assert fell_back == {"all_reduce": 1}


def test_a_reduction_in_place_leaves_other_ranks_their_tensors(seen: list[dict[str, Any]]) -> None:
    assert [each["reduced in place"] for each in seen] == [[[1.0] * 5] * 2, [[3.0] * 5] * 2]


def test_nothing_is_prepared_before_the_first_call_and_each_program_once(seen: list[dict[str, Any]]) -> None:
    names = ["allgather/allgather.xml", "allreduce/allreduce_inplace.xml", "alltoall/alltoall.xml"]
    names += ["broadcast/broadcast_inplace.xml", "reduce/reduce.xml", "reducescatter/reducescatter.xml"]
    for rank, each in enumerate(seen):
        assert each["compiled by init"] == []
        # Rank 0 compiles, then all take what lies in the cache.
        assert each["compiled"] == (names if rank else sorted(2 * names))


def test_kernels_run_the_plan_with_its_instances(seen: list[dict[str, Any]], folder: Path) -> None:
    from treadle.comm.library import load

    library = load(folder, RANKS)
    blocks = [len(tables(one.of("allreduce")[0].program).blocks) for one in (library, library.alone())]
    assert blocks[0] == 2 * blocks[1]
    assert all(each["instances"] == blocks[0] for each in seen)


def test_explain_tells_before_and_after_the_first_call(seen: list[dict[str, Any]]) -> None:
    for each in seen:
        before, dtype, after = each["explained"]
        taken = "allreduce of 256 B: allreduce/allreduce_inplace.xml, for any size, by kernels"
        assert before.startswith(f"{taken} if its first call finds all that they need, predicted ")
        assert after.startswith(f"{taken}, predicted ")
        assert dtype == "allreduce of 512 B: torch.distributed, float64 is not a dtype that is executed on GPUs"


def test_what_no_kernel_runs_falls_back_and_is_told_once(seen: list[dict[str, Any]]) -> None:
    for each in seen:
        assert each["fell back"] == [
            f"all_reduce: {OWN}, float64 is not a dtype that is executed on GPUs",
            f"all_reduce: {OWN}, op PRODUCT is not one of sum, avg, min, max",
            f"gather: {OWN}, gather is not executed on GPUs",
            f"all_to_all_single with split sizes: {OWN}, the sizes differ, and alltoallv is not executed on GPUs",
        ]
        assert each["other GPU"].startswith(
            f"rank {seen.index(each)}: found a tensor on cuda:2, expected one on cuda:{seen.index(each)} "
        )


def test_an_obstacle_on_one_rank_makes_all_fall_back(seen: list[dict[str, Any]]) -> None:
    for each in seen:
        for reason, lines in each["obstacles"].items():
            assert lines == [f"all_reduce: {OWN}, {reason}", f"allreduce of 20 B: torch.distributed, {reason}"]


def test_ranks_on_several_hosts_exchange_grouped_messages(seen: list[dict[str, Any]]) -> None:
    for each in seen:
        wrong, explained, compiled, (plain, hooked) = each["between hosts"]
        assert wrong == []
        assert "by grouped messages between the hosts, predicted" in explained
        assert compiled == []
        assert hooked == pytest.approx(plain, rel=1e-6)


def test_faults_are_named_and_end_one_program_alone(seen: list[dict[str, Any]]) -> None:
    late = "the program does not end: rank 0 waited longer than its limit; rank 1 has made 1 of 2 calls"
    name = "treadle_allreduce_2_inplace: "
    for rank, each in enumerate(seen):
        found = each["faults"]
        assert found["meta"].startswith(f"rank {rank}: found a tensor on meta, which has no memory, expected one on ")
        assert found["output"] == f"rank {rank}: found an input on cpu and an output on cuda:1, expected one device"
        assert "rank 1: GPU-1: the kernels of this program take 50% of it at once and those of " in found["shared"]
        assert found["limit"] == "treadle.comm.init: found timeout inf, expected seconds above 0, or None"
        assert found["next"] == found["after"] == f"{name}not usable any more: {late}"
        assert found["others"] == [1.0] * 4 + [2.0] * 4
        assert found["unseen"] == f"{name}{late}"


def test_gradients_with_the_hook_are_those_of_plain_ddp(seen: list[dict[str, Any]]) -> None:
    for each in seen:
        plain, hooked = each["trained"]
        assert hooked == pytest.approx(plain, rel=1e-6)
