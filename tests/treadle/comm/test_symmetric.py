"""treadle.comm over symmetric memory: what the plan says, else by slots. One rank; tensors on the CPU are taken for
CUDA ones, kernels are fibers, and the framework's symmetric memory is a stand-in."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, distributed

from tests.planner.passes.collective.build import in_network, readable, switch, switch_sketch
from tests.planner.plans import collective_plan
from tests.treadle.runtime.collective.native_cases import made
from tests.treadle.runtime.collective.symmetric_cases import Memory
from treadle.codegen import targets
from treadle.codegen.emit import write
from treadle.comm import gpu, symmetric
from treadle.comm.gpu import GpuExecutor
from treadle.comm.library import LoadedAlgorithm, load
from treadle.passes.collective import tuning
from treadle.planner.errors import InputError
from treadle.runtime.collective import native
from treadle.runtime.collective.symmetric import SymmetricKernels, SymmetricRank

CPU = torch.device("cpu")


class Lane:
    """Calls run at once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def queue(self, work: Callable[[], Any], call: object) -> torch.futures.Future[Any]:
        future = torch.futures.Future[Any]()
        work()
        future.set_result(call)
        return future


class Slots:
    """In place of a rank of a compiled program."""

    share = 0.0

    def __init__(self, *_: Any) -> None:
        pass


class Claim:
    """All of a GPU is free."""

    def __init__(self, name: str) -> None:
        pass

    def extend(self, share: float) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuExecutor]:
    """The one rank of a group."""
    Memory(1, monkeypatch)
    monkeypatch.setattr(gpu, "device_of", lambda tensor: CPU)
    monkeypatch.setattr(gpu, "identity", lambda device: "GPU")
    monkeypatch.setattr(gpu, "compiler", lambda target: "nvcc")
    monkeypatch.setattr(gpu, "arch_of", lambda device: "sm_90")
    monkeypatch.setattr(gpu, "SerialStream", Lane)
    monkeypatch.setattr(symmetric, "SymmetricKernels", lambda target, arch: SymmetricKernels("fibers"))
    monkeypatch.setattr(gpu, "compiled", lambda algorithm, device, timeout: algorithm.program)
    monkeypatch.setattr(gpu, "CardClaim", Claim)
    monkeypatch.setattr(native, "CompiledRank", Slots)
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        yield GpuExecutor(0, lambda backend: None, lambda group: None, distributed.group.WORLD)
    finally:
        distributed.destroy_process_group()


def algorithm(**more: Any) -> LoadedAlgorithm:
    return LoadedAlgorithm("allreduce.xml", made("allreduce", "Simple", ranks=1), None, **more)


def test_a_plan_priced_for_symmetric_memory_runs_over_it(executor: GpuExecutor) -> None:
    tensor = torch.arange(100, dtype=torch.float32)
    planned = algorithm(symmetric="two-shot")
    assert executor.prepare(planned, tensor) is None
    assert executor.known(planned) == (None, "two-shot over symmetric memory")
    member = executor.members[symmetric.key_of(planned)]
    assert isinstance(member, SymmetricRank)
    results: list[Tensor] = []
    call: Any = SimpleNamespace(body=lambda run: results.append(run(tensor, op="avg")))
    executor.queued(planned, call).wait()
    (result,) = results
    member.wait()
    assert result.data_ptr() == tensor.data_ptr()
    assert torch.equal(tensor, torch.arange(100, dtype=torch.float32))
    executor.close()
    assert executor.buffers is None


def test_large_calls_of_the_same_plan_go_through_slots(executor: GpuExecutor) -> None:
    planned, tensor = algorithm(symmetric="one-shot"), torch.ones(4)
    assert symmetric.carried(planned, symmetric.MOST_BYTES) == planned
    assert symmetric.carried(planned, 4, timeout=1.0) == algorithm()
    large = symmetric.carried(planned, symmetric.MOST_BYTES + 1)
    assert large == algorithm()
    assert [executor.prepare(each, tensor) for each in (planned, large)] == [None, None]
    assert set(executor.members) == {"allreduce.xml", "allreduce.xml over symmetric memory"}
    assert executor.known(large) == (None, "by kernels")


def test_without_symmetric_memory_a_plan_goes_through_slots_and_says_why(
    executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import torch.distributed._symmetric_memory as real

    def refuse(buffer: Tensor, group: object) -> None:
        raise RuntimeError("these GPUs are not connected")

    monkeypatch.setattr(real, "rendezvous", refuse)
    planned = algorithm(symmetric="one-shot")
    with caplog.at_level(logging.WARNING, "treadle.comm"):
        assert executor.prepare(planned, torch.ones(4)) is None
    assert "allreduce.xml runs through slots, not over symmetric memory: rank 0: these GPUs are not" in caplog.text
    assert executor.known(planned) == (None, "by kernels")


def test_a_plan_in_the_switch_runs_over_symmetric_memory_or_not_at_all(
    executor: GpuExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hardware, sketch = in_network(4), switch_sketch(4, "free")
    plan = collective_plan("allreduce", hardware, sketch, size_bytes=2**10, method="nvls")
    write(targets.generate(plan, "plan.json", target="cuda"), tmp_path / "folder")
    library = load(tmp_path / "folder", 4)
    (planned,) = library.algorithms
    assert (planned.symmetric, planned.switched, library.alone().algorithms) == ("two-shot", True, ())
    assert symmetric.carried(planned, symmetric.MOST_BYTES + 1) == planned
    chosen, choice = library.choose("allreduce", 100, inplace=True)
    assert chosen == planned
    assert choice.algorithm == "allreduce in the switch"
    assert executor.prepare(planned, torch.ones(4)) is None
    assert executor.known(planned) == (None, "two-shot over symmetric memory")
    executor.members.clear()
    executor.buffers = None
    monkeypatch.setattr(symmetric, "SymmetricRank", refused)
    assert executor.prepare(planned, torch.ones(4)) == "these GPUs are not connected"


def refused(*_: object) -> None:
    raise InputError("these GPUs are not connected")


def test_folders_say_what_their_plans_were_priced_for(tmp_path: Path) -> None:
    hardware, sketch = readable(switch(4)), switch_sketch(4, "free")
    for name, profile in (("with", hardware), ("without", switch(4))):
        pricing = tuning.pricing(profile, "LL", 1)
        plan = collective_plan("allreduce", profile, sketch, size_bytes=2**10, method="all-pairs", pricing=pricing)
        write(targets.generate(plan, "plan.json"), tmp_path / name)
    found = {one.name: one.symmetric for one in load(tmp_path, 4).algorithms}
    assert found == {f"with/allreduce{tag}.xml": "one-shot" for tag in ("", "_inplace")} | {
        f"without/allreduce{tag}.xml": None for tag in ("", "_inplace")
    }
