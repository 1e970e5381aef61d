"""States on GPUs, here emulated ones: they arrive in the memory of agents, and only with the sum of their owner."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from tests.conftest import ROOT
from tests.treadle.checkpoint.small import decisions
from treadle.checkpoint.gpu import GpuRankMemory, on_gpu
from treadle.checkpoint.layout import PackedState, Packer, unpack
from treadle.codegen.checkpoint.cuda import texts_of
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
from treadle.runtime.checkpoint.access import AgentAccess, write
from treadle.runtime.checkpoint.agent_job import AgentJob
from treadle.runtime.checkpoint.gpu import GpuTransfers
from treadle.runtime.checkpoint.holder import Holder
from treadle.runtime.checkpoint.memory import StateOf

EMULATED = ROOT / "tests" / "codegen" / "checkpoint" / "emulated"
JOB, NONCE = "small", "07" * 32
STATE_BYTES = 10_000
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="found no g++"),
]


class Ranks(NamedTuple):
    """Those of two machines with the holders of their agents; `add` is added to what each exchanges."""

    memories: list[GpuRankMemory]
    holders: list[Holder]
    add: list[int]


class Meeting:
    """An exchange between threads."""

    def __init__(self, ranks: int) -> None:
        self.barrier, self.values, self.add = threading.Barrier(ranks, timeout=30), [0] * ranks, [0] * ranks

    def of(self, rank: int) -> Callable[[int], list[int]]:
        def exchange(value: int) -> list[int]:
            self.values[rank] = value ^ self.add[rank]
            self.barrier.wait()
            found = list(self.values)
            self.barrier.wait()
            return found

        return exchange


@pytest.fixture(scope="module")
def planned() -> CheckpointDecisions:
    return decisions(state_bytes=STATE_BYTES, buffer_bytes=4096)


@pytest.fixture(scope="module")
def library(planned: CheckpointDecisions, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("emulated")
    for name, text in texts_of(planned, "plan").items():
        (folder / name).write_text(text)
    command = ["g++", "-std=c++17", "-shared", "-fPIC", f"-I{EMULATED}", f"-I{folder}", EMULATED / "library.cpp"]
    subprocess.run([*command, "-o", folder / "made.so"], check=True)
    made = ctypes.CDLL(str(folder / "made.so"))
    made.emulated_stream.restype = ctypes.c_void_p
    return made


@pytest.fixture
def ranks(planned: CheckpointDecisions, library: Any, tmp_path: Path) -> Iterator[Ranks]:
    job, meeting = AgentJob(JOB, NONCE, planned), Meeting(2)
    numbers = [ctypes.c_int(rank) for rank in range(2)]
    with ExitStack() as stack:
        holders, memories = [], []
        for machine in range(2):
            holder = Holder(job.hosted(machine), 1, STATE_BYTES, namespace=JOB, nonce=job.key, say=print)
            holders.append(stack.enter_context(holder))
            holder.announce(1, {})
            access = tmp_path / f"{machine}.json"
            write(access, AgentAccess(JOB, NONCE, job.digest, machine, holder.local, ("127.0.0.1", 1)))
            transfers = GpuTransfers(
                planned, machine, ctypes.addressof(numbers[machine]), library.emulated_stream(), library
            )
            stream = library.emulated_stream()
            memory = GpuRankMemory(
                access, planned, machine, transfers, lambda stream=stream: stream, meeting.of(machine)
            )
            memories.append(memory)
        yield Ranks(memories, holders, meeting.add)


def state_of(rank: int, version: int) -> PackedState:
    values = {"weight": torch.arange(1500.0) + 1000 * rank + version, "step": version, "narrow": torch.ones(7).half()}
    return Packer().pack(version, values)


def keep(ranks: Ranks, version: int) -> None:
    states = [state_of(rank, version) for rank in range(2)]
    for memory, state in zip(ranks.memories, states, strict=True):
        memory.begin(state)
        for number in range(2):
            memory.release(number)
            memory.release_own(number)
        memory.release(2)
        memory.release_own(None)
        memory.drain()


def closed(ranks: Ranks) -> list[BaseException]:
    """What closing both ends with."""
    found: list[BaseException] = []
    for memory in ranks.memories:
        try:
            memory.close()
        except CheckFailed as error:
            found.append(error)
    return found


def test_every_holder_has_the_versions_of_gpus_whole(ranks: Ranks) -> None:
    for version in range(4):
        keep(ranks, version)
        if version == 1:
            for memory in ranks.memories:
                memory.renew()  # another stream to the agent, and other mappings of its memory
    assert closed(ranks) == []
    for holder in ranks.holders:
        for machine in range(2):
            state = StateOf(machine, 0)
            assert [each.version for each in holder.memory.versions()[state]] == [3, 2]
            for version in (2, 3):
                expected = state_of(machine, version)
                found = torch.from_numpy(np.array(holder.memory.view(state, version)))
                assert torch.equal(found[: expected.bytes], torch.cat(expected.parts))
                assert unpack(found)[1]["step"] == version
            assert holder.memory.verify(3) == ()


def test_a_version_that_arrives_otherwise_than_its_owner_has_it_is_not_taken(ranks: Ranks) -> None:
    keep(ranks, 0)
    for memory in ranks.memories:
        memory._settle()
    ranks.add[1] = 1  # what rank 0 holds of machine 1 has another sum
    keep(ranks, 1)
    assert len(closed(ranks)) == 2
    versions = ranks.holders[0].memory.versions()
    assert [each.version for each in versions[StateOf(1, 0)]] == [0]


def test_gpus_without_nccl_are_refused(planned: CheckpointDecisions) -> None:
    with pytest.raises(InputError, match="without NCCL"):
        on_gpu("access.json", planned, 0, torch.device("cuda"))
