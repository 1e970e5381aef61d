"""The transfers over NCCL: their tables, what is refused, each wait that they need, and that nvcc takes them."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from tests.codegen.checkpoint.held import PAIR_AND_RING, decided, plan_of
from tests.conftest import Golden
from treadle.codegen.checkpoint.cuda import MAIN, cuda_checkpoint, texts_of
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
from treadle.runtime.checkpoint.gpu import GpuTransfers

EMULATED = Path(__file__).with_name("emulated")
THREE = ((0, 1, 2), (1, 2, 0), (2, 0, 1))


def two_buffers(decisions: CheckpointDecisions) -> CheckpointDecisions:
    return replace(decisions, pieces=tuple(replace(piece, buffer=piece.buffer % 2) for piece in decisions.pieces))


def write(decisions: CheckpointDecisions, folder: Path) -> Path:
    for name, text in texts_of(decisions, "plan.json").items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.golden
def test_the_tables_are_those_of_the_plan(golden: Golden) -> None:
    made = cuda_checkpoint(plan_of(decided(PAIR_AND_RING, name='a "ring"\n#error \\')), "plan.json")
    golden("checkpoint/checkpoint_plan.h", made.files["checkpoint_plan.h"])
    assert made.facts == {"ranks": 10, "pieces": 4, "checkpoint_ns": 100_000}


def test_rounds_in_which_a_machine_receives_two_states_are_refused() -> None:
    with pytest.raises(InputError, match="round 1 in which a machine receives several states"):
        texts_of(decided(((0, 1), (1, 0), (2, 0))), "plan.json")
    turned = replace(decided(), pieces=decided().pieces[::-1])
    with pytest.raises(InputError, match="pieces that go back to an earlier span"):
        texts_of(turned, "plan.json")


@pytest.mark.skipif(shutil.which("g++") is None, reason="found no g++")
@pytest.mark.slow
def test_states_arrive_whole_in_any_order_of_events_and_no_wait_is_spare(tmp_path: Path) -> None:
    folder = write(two_buffers(decided(THREE)), tmp_path)
    command = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]
    source = EMULATED / "trainings.cpp"
    subprocess.run([*command, f"-I{EMULATED}", f"-I{folder}", source, "-o", folder / "trainings"], check=True)

    def wrong(*line: str) -> int:
        done = subprocess.run([folder / "trainings", "40", *line], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert wrong() == 0
    text = (folder / "treadle_transfers.h").read_text().splitlines()
    waits = [number for number, line in enumerate(text, 1) if "cudaStreamWaitEvent(" in line]
    assert len(waits) == 5
    for number in waits:
        assert wrong(str(number)) > 0, text[number - 1]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="found no nvcc")
@pytest.mark.slow
@pytest.mark.parametrize("headers", ["declared", "installed"])
def test_nvcc_takes_the_library_for_both_generations(headers: str, tmp_path: Path) -> None:
    """Against the subset of NCCL that is declared here, and against its own header where that is installed."""
    folders = []
    if headers == "installed":
        spec = find_spec("nvidia.nccl") if find_spec("nvidia") else None
        folders = [Path(each) / "include" for each in (spec.submodule_search_locations or [] if spec else [])]
        if not any((each / "nccl.h").is_file() for each in folders):
            pytest.skip("found no headers of NCCL; install the extra nccl")
    write(decided(PAIR_AND_RING), tmp_path)
    generations = [f"-gencode=arch=compute_{number},code=sm_{number}" for number in (80, 90)]
    options = ["-std=c++17", *generations, "-Werror", "all-warnings", "-Xcompiler=-fPIC,-Wall,-Wextra"]
    include = [f"-I{each}" for each in folders]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run(["nvcc", *options, *include, "-c", MAIN, "-o", "made.o"], cwd=tmp_path, env=environment, check=True)
    symbols = subprocess.run(["nm", "-u", "made.o"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    wanted = {line.split()[1] for line in symbols.splitlines() if " nccl" in line}
    assert wanted == {"ncclGetErrorString", "ncclGroupEnd", "ncclGroupStart", "ncclRecv", "ncclSend"}


@pytest.mark.skipif(shutil.which("g++") is None, reason="found no g++")
@pytest.mark.slow
def test_ranks_call_the_library_and_states_are_padded(tmp_path: Path) -> None:
    decisions = decided(PAIR_AND_RING, devices=1)
    folder = write(decisions, tmp_path)
    command = ["g++", "-std=c++17", "-shared", "-fPIC", f"-I{EMULATED}", f"-I{folder}", EMULATED / "library.cpp"]
    subprocess.run([*command, "-o", folder / "made.so"], check=True)
    library = ctypes.CDLL(str(folder / "made.so"))
    library.emulated_stream.restype = ctypes.c_void_p
    states = [torch.full((900,), rank, dtype=torch.uint8) for rank in range(5)]
    host = np.full((5, 2, 1000), 255, np.uint8)
    numbers = [ctypes.c_int(rank) for rank in range(5)]
    streams = [library.emulated_stream() for _ in range(5)]
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(
                GpuTransfers(decisions, rank, ctypes.addressof(numbers[rank]), library.emulated_stream(), library)
            )
            for rank in range(5)
        ]
        for rank, transfers in enumerate(ranks):
            transfers.pin(host[rank])
            transfers.begin([states[rank][:300], states[rank][300:]], list(host[rank]), streams[rank])
            transfers.release(0)
            transfers.message(0)
            transfers.drain(streams[rank])
        for rank, transfers in enumerate(ranks):
            transfers.wait()
            owner = [held[1] for held in PAIR_AND_RING].index(rank)
            assert (host[rank, :, :900] == [[rank], [owner]]).all()
            assert (host[rank, :, 900:] == 0).all()
        with pytest.raises(CheckFailed, match="found rank 5 of 5"):
            GpuTransfers(decisions, 5, 0, streams[0], library)
        with pytest.raises(InputError, match="found a state of 1800 bytes, expected at most 1000"):
            ranks[0].begin(states[:2], list(host[0]), streams[0])
