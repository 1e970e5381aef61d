"""Faults of programs on GPUs, in real processes over the stand-in for the CUDA runtime: a rank that dies, is late or
closes ends the kernels of all others by name; paths and tensors that do not fit are refused before any launch."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed
from torch._subclasses import FakeTensorMode

from tests.codegen.collective.algorithms import ring_allreduce
from tests.treadle.runtime.collective.native_cases import made, on_fake_cuda
from treadle.codegen.collective.cuda.tables import tables
from treadle.codegen.collective.lower import lower
from treadle.planner.errors import CheckFailed, InputError
from treadle.runtime.collective.native import CompiledProgram, CompiledRank, CompiledRanks, LaunchSettings

pytestmark = pytest.mark.slow

LONGEST = 60.0
RING = lower(ring_allreduce(3), inplace=True)


@pytest.fixture(scope="module", autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def fake(cache_home: None) -> Path:
    return on_fake_cuda(processes=True)


def ring(path: Path, ranks: int = 3, timeout: float = 0) -> CompiledProgram:
    program = RING if ranks == 3 else lower(ring_allreduce(ranks), inplace=True)
    return CompiledProgram(program, "fibers", path, tables(program), LaunchSettings(timeout=timeout))


class Group:
    """Forked processes of one gloo group; `say` hands something to the test, `meet` waits for all that are left."""

    def __init__(self, world: int, store: Path, work: Callable[[Group, int], None]) -> None:
        context = multiprocessing.get_context("fork")
        self.pipes = [context.Pipe() for _ in range(world)]
        self.processes = [
            context.Process(target=self._run, args=(rank, world, store, work), daemon=True) for rank in range(world)
        ]
        for process in self.processes:
            process.start()
        for _, theirs in self.pipes:
            theirs.close()

    def _run(self, rank: int, world: int, store: Path, work: Callable[[Group, int], None]) -> None:
        torch.set_num_threads(1)
        distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
        self.own = self.pipes[rank][1]
        work(self, rank)

    def say(self, what: Any) -> None:
        self.own.send(what)

    def meet(self) -> None:
        self.say(None)
        self.own.recv()

    def answers(self, ranks: range) -> list[list[Any]]:
        """All that each rank says until it ends; those that meet are let go once all of `ranks` do."""
        ends: dict[Connection, int] = {self.pipes[rank][0]: rank for rank in ranks}
        said: list[list[Any]] = [[] for _ in ranks]
        met: list[Connection] = []
        while ends:
            ready = wait(list(ends), LONGEST)
            assert ready, f"ranks {sorted(ends.values())} still wait, after {said}"
            for pipe in ready:
                try:
                    what = pipe.recv()
                except EOFError:
                    del ends[pipe]
                    continue
                if what is None:
                    met.append(pipe)
                else:
                    said[ends[pipe]].append(what)
            if met and len(met) == len(ends):
                for pipe in met:
                    pipe.send(None)
                met.clear()
        return said


def outcome(call: Callable[[], Any]) -> tuple[str, tuple[str, ...]]:
    try:
        call()
    except CheckFailed as error:
        return str(error).splitlines()[0], error.findings
    return "", ()


def summed(member: CompiledRank, value: float) -> float:
    tensor = torch.full((99,), value)
    member(tensor)
    member.wait()
    return float(tensor[0])


def memory_files() -> int:
    links = [f"/proc/self/fd/{file}" for file in os.listdir("/proc/self/fd")]
    return sum("memfd:" in os.readlink(link) for link in links if os.path.islink(link))


def test_a_killed_process_ends_kernels_that_have_no_limit(fake: Path, tmp_path: Path) -> None:
    def work(group: Group, rank: int) -> None:
        member = CompiledRank(ring(fake), rank, rank)
        assert summed(member, rank + 1.0) == 6.0
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        group.say(outcome(lambda: summed(member, 1.0)))
        group.say(outcome(lambda: member(torch.ones(9))))
        group.say(memory_files())
        member.close()

    for first, again, files in Group(3, tmp_path / "store", work).answers(range(3))[:2]:
        assert first[0] == "treadle_allreduce_3_inplace: rank 2 has ended before it was done"
        assert any("waits for" in line for line in first[1])
        assert again[0] == "treadle_allreduce_3_inplace: not usable any more: rank 2 has ended before it was done"
        assert files == 0


def test_a_wait_beyond_its_limit_ends_the_kernels_of_all_ranks_and_no_other_program(fake: Path, tmp_path: Path) -> None:
    """Rank 0 has a limit, rank 1 has none, rank 2 is late."""

    def work(group: Group, rank: int) -> None:
        member = CompiledRank(ring(fake, timeout=0 if rank else 0.3), rank, rank)
        other = CompiledRank(ring(fake), rank, rank)
        assert summed(member, 1.0) == 3.0
        if rank < 2:
            group.say(outcome(lambda: summed(member, 1.0)))
        group.meet()
        if rank == 2:
            group.say(outcome(lambda: summed(member, 1.0)))
        group.say(summed(other, 2.0))
        member.close()
        other.close()

    said = Group(3, tmp_path / "store", work).answers(range(3))
    late = "does not end: rank 0 waited longer than its limit; rank 2 has made 1 of 2 calls"
    assert [each[0][0].removeprefix("treadle_allreduce_3_inplace: ") for each in said] == [
        f"the program {late}",
        f"the program {late}",
        f"not usable any more: the program {late}",
    ]
    assert "gpu 0 tb 0 step" in said[0][0][1][0]
    assert "waits for a message of gpu" in said[1][0][1][0]
    assert [each[1] for each in said] == [6.0] * 3


def test_a_rank_that_closes_early_is_named(fake: Path, tmp_path: Path) -> None:
    def work(group: Group, rank: int) -> None:
        member = CompiledRank(ring(fake, 2), rank, rank)
        if rank:
            member._session.close()
        group.say(outcome(lambda: summed(member, 1.0))[0] if not rank else "")

    said = Group(2, tmp_path / "store", work).answers(range(2))
    assert "rank 1 closed the program before all ranks were done" in said[0][0]


def test_a_process_may_hold_several_ranks(fake: Path, tmp_path: Path) -> None:
    """Two processes with two GPUs each; and ranks that none or both of them hold."""

    def work(group: Group, number: int) -> None:
        held = (2 * number, 2 * number + 1)
        member = CompiledRanks(ring(fake, 4), {rank: rank for rank in held})
        for turn in range(3):
            tensors = {rank: torch.full((500,), rank + turn, dtype=torch.int32) for rank in held}
            results = member.run(tensors)
            member.wait()
            group.say([int(results[rank][0]) for rank in held])
        with pytest.raises(InputError, match=r"found tensors of ranks \[0\], expected those of this process, "):
            member.run({0: torch.ones(4)})
        member.close()
        for devices in ({rank: rank for rank in held[:1]}, {0: 0, held[1]: held[1]}):
            try:
                CompiledRanks(ring(fake, 4), devices)
            except InputError as error:
                group.say(str(error))

    said = Group(2, tmp_path / "store", work).answers(range(2))
    refused = ["found rank 1 in no process, expected each of 4 ranks in one"]
    refused += ["found rank 0 in processes 0, 1, expected each of 4 ranks in one"]
    assert said == [[[6, 6], [10, 10], [14, 14], *refused]] * 2


def test_ll128_is_refused_on_paths_that_are_no_nvlink() -> None:
    """The stand-in has NVLink between devices 0 and 1, and between 2 and 3."""
    program = made("allgather", "LL128", ranks=2)
    path = on_fake_cuda(protocol="LL128", sums=False, nvlinked=2)
    library = CompiledProgram(program, "fibers", path, tables(program), LaunchSettings())
    assert [
        float(each[0]) for each in library._call(library.open([0, 1]), dict.fromkeys((0, 1), torch.ones(9)), "max", 0)
    ]
    with pytest.raises(
        InputError, match="rank 1 on device 2 has no path with stores of 128 bytes at once to rank 0 on"
    ):
        library.open([1, 2])
    near, far = library.open([1, -1]), library.open([-1, 2])
    message = (
        "rank 0 on device 1 has no path with stores of 128 bytes at once to rank 1 on device 2, which protocol LL128 "
    )
    with pytest.raises(InputError, match=message + "needs: NVLink has them, PCIe has not; take protocol Simple or LL"):
        near.attach(1, far.share(1))


def test_tensors_elsewhere_are_refused_before_a_launch(fake: Path) -> None:
    library = ring(fake)
    on_gpus = CompiledProgram(RING, "cuda", fake, library.table, library.settings)
    session = on_gpus.open([0, 1, 2])
    with FakeTensorMode():
        given = [torch.empty(4, device=f"cuda:{device}") for device in (0, 1, 3)]
    with pytest.raises(InputError, match="rank 2: found a tensor on cuda:3, expected one on cuda:2"):
        on_gpus._call(session, dict(enumerate(given)), "sum", 0)
    with pytest.raises(InputError, match="rank 1: found a tensor on cpu, expected one on cuda"):
        on_gpus.run([given[0], torch.ones(4), given[2]])
    with pytest.raises(InputError, match="rank 0: found a tensor on meta, expected one on cpu"):
        library.run([torch.empty(4, device="meta"), torch.ones(4), torch.ones(4)])
    with pytest.raises(InputError, match="found a handle of 3 bytes, expected "):
        session.attach(1, b"abc")
