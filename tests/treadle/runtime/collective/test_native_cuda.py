"""The CUDA side of the driver, executed over a stand-in for the CUDA runtime whose devices hold little."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import distributed

from tests.codegen.collective.algorithms import ring_allreduce
from tests.treadle.runtime.collective.native_cases import made, on_fake_cuda
from treadle.codegen.collective.cuda.tables import tables
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.program import CollectiveProgram
from treadle.planner.errors import InputError
from treadle.runtime.collective.compare_native import random_inputs, reference
from treadle.runtime.collective.native import CompiledProgram, CompiledRank, LaunchSettings, build


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The interpreter kernel on fibers under the CUDA platform."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield on_fake_cuda()


def on(path: Path, program: CollectiveProgram, **settings: int) -> CompiledProgram:
    return CompiledProgram(program, "fibers", path, tables(program), LaunchSettings(**settings))


def require_right(library: CompiledProgram, devices: list[int]) -> None:
    session = library.open(devices)
    for seed in range(3):
        inputs = random_inputs(library.program, 200, torch.int32, seed)
        expected, _ = reference(library.program, inputs, "avg")
        found = library._call(session, dict(enumerate(inputs)), "avg", seed)
        assert all(torch.equal(a.long(), b) for a, b in zip(found, expected, strict=True) if b is not None)
    session.close()


def test_virtual_ranks_and_peers(fake: Path) -> None:
    program = lower(ring_allreduce(4))
    for devices in ([0, 0, 0, 0], [2, 2, 2, 2], [0, 0, 1, 1], [1, 0, 2, 2]):
        require_right(on(fake, program), devices)


def test_ranks_in_sessions_of_their_own(fake: Path) -> None:
    program = lower(ring_allreduce(3), inplace=True)
    library = on(fake, program)
    sessions = [library.open([rank if each == rank else -1 for each in range(3)]) for rank in range(3)]
    for rank, session in enumerate(sessions):
        for other, peer in enumerate(sessions):
            if other != rank:
                session.attach(other, peer.share(other))
    tensors = [torch.full((50,), rank, dtype=torch.int32) for rank in range(3)]
    for rank, session in enumerate(sessions):
        library._call(session, {rank: tensors[rank]}, "sum", 0, wait=False)
    for session in sessions:
        session.wait()
    assert [tensor.tolist() for tensor in tensors] == [[3] * 50] * 3


def test_a_member_is_one_rank_of_a_group(fake: Path, tmp_path: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        member = CompiledRank(on(fake, made("allreduce", "Simple", ranks=1)), 0, 0)
        tensor = torch.arange(100, dtype=torch.int32)
        result = member(tensor, "avg")
        member.wait()
        assert torch.equal(result, tensor)
        assert result.data_ptr() != tensor.data_ptr()
        with pytest.raises(InputError, match="found 1 processes, expected the program's 4 ranks"):
            CompiledRank(on(fake, made("allreduce", "Simple")), 0, 0)
    finally:
        distributed.destroy_process_group()


def test_threads_are_as_many_as_let_all_blocks_be_resident(fake: Path) -> None:
    """A device holds four multiprocessors of 64 threads: 4 blocks of 64 or 8 of 32, and no more."""
    require_right(on(fake, lower(ring_allreduce(4, instances=2))), [0] * 4)
    with pytest.raises(
        InputError, match="found 12 threadblocks of 4 ranks on device 0, expected at most 8, as many as"
    ):
        require_right(on(fake, lower(ring_allreduce(4, instances=3))), [0] * 4)
    with pytest.raises(InputError, match=r"found 8 .* at most 4, .*fewer instances, fewer threads or more devices"):
        require_right(on(fake, lower(ring_allreduce(4, instances=2)), threads=64), [0] * 4)
    require_right(on(fake, lower(ring_allreduce(4, instances=3))), [0, 0, 1, 1])


def test_wrong_devices_and_threads_are_refused(fake: Path) -> None:
    library = on(fake, lower(ring_allreduce(2)))
    with pytest.raises(InputError, match="found no device 4"):
        library.open([0, 4])
    with pytest.raises(InputError, match="expected a multiple of 8 threads, at most 512"):
        require_right(on(fake, lower(ring_allreduce(2)), threads=12), [0, 0])


def test_a_handle_that_is_none_is_refused(fake: Path) -> None:
    session = on(fake, lower(ring_allreduce(2))).open([0, -1])
    with pytest.raises(InputError, match="cudaIpcOpenMemHandle: invalid argument"):
        session.attach(1, bytes(len(session.share(0))))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_library_for_gpus_is_compiled_without_one_and_says_that_none_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    program = replace(made("allgather", "LL"), name="gathering")
    library = build(program, "cuda", kernel="specialised", arch="sm_90")
    with pytest.raises(InputError, match="gathering: found no device 0"):
        library.open([0] * 4)
    with pytest.raises(InputError, match="found a tensor on cpu, expected one on cuda"):
        library.run([torch.ones(1)] * 4)
