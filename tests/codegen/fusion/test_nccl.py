"""Schedules on NCCL: which calls are made, what comes apart; compiled where the headers and nvcc are there."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.fusion.ptxas import resources
from tests.planner.passes.fusion.schedule_builder import ScheduleBuilder
from tests.planner.passes.fusion.transform_samples import example
from treadle.codegen.fusion import nccl, nccl_device
from treadle.planner.passes.fusion.program import Bindings, Program
from treadle.planner.passes.fusion.refusal import TypeRefusal

OPTIMIZER = ("avg", "m_", "v_", "m1", "v1")


def optimizer(name: str, *region: str, map: str = "block") -> Program:
    """RS, the step on slices of all state, AG of the model's copy, in one kernel."""
    schedule = ScheduleBuilder(example(name))
    whole = schedule.fuse([*OPTIMIZER, *region], "ComputationFuse")
    rs, ag = schedule.split(schedule.find("AllReduce"), "ARSplitRSAG", map=map)
    (part,), gathers = schedule.reorder(ag, [whole])
    for tensor in ("m", "v", "p"):
        schedule.as_slice(tensor)
        schedule.dead(gathers[tensor])
    schedule.fuse([rs, part, gathers["ph"]], "AllReduceFuse")
    return schedule.program


def adam(map: str = "block") -> Program:
    return optimizer("adam", "p_", "ph_", map=map)


def lamb() -> Program:
    return optimizer("lamb", "u", "norm_p", "norm_u", "p_", "ph_")


def pipeline() -> Program:
    schedule = ScheduleBuilder(example("pipeline"))
    send = schedule.fuse(["c", "o"], "SendFuse")
    rs, ag = schedule.split("sum_", "ARSplitRSAG")
    sliced, gathers = schedule.reorder(ag, [send])
    schedule.overlap([rs, sliced[0], gathers["o"]])
    return schedule.program


def queued(text: str) -> list[str]:
    """The calls of a run, in order."""
    body = text.split("inline void run(")[1].split("++session.epoch")[0]
    lines = [line.strip() for line in body.splitlines()[2:]]
    return [line.removeprefix("require(").split("(")[0] for line in lines if line.startswith(("require", "launch"))]


def test_a_fused_allreduce_comes_apart_and_the_file_says_so() -> None:
    made = nccl.generate(adam(), Bindings({"N": 64}, 4))
    assert queued(made.text) == ["ncclReduceScatter", "launch", "ncclAllGather"]
    (note,) = made.notes
    assert note.startswith("fused_allreduce: AllReduceFuse is ReduceScatter, AllGather of NCCL, and a kernel")
    assert f"//   {note}" in made.text
    assert "// ag_ph: AllGather(ph_s), in place" in made.text
    place = [buffer.name for buffer in made.buffers].index("ph")
    whole = f"session.tensor<f16>({place})"
    assert f"ncclAllGather({whole} + session.place * int64_t(16), {whole}, 16, ncclFloat16, group, stream)" in made.text
    assert "cudaStreamSynchronize" not in made.text
    assert "cudaDeviceSynchronize" not in made.text


def test_sizes_that_ranks_do_not_divide_go_part_by_part() -> None:
    made = nccl.generate(adam(), Bindings({"N": 10}, 4))
    assert queued(made.text) == [
        "ncclGroupStart", *["ncclReduce"] * 4, "ncclGroupEnd", "launch",
        "ncclGroupStart", *["ncclBroadcast"] * 4, "ncclGroupEnd",
    ]  # fmt: skip
    counts = [line.split(", ")[2] for line in made.text.splitlines() if "require(ncclReduce(" in line]
    assert counts == ["3", "3", "3", "1"]


def test_norms_of_slices_take_a_small_allreduce_between_kernels() -> None:
    made = nccl.generate(lamb(), Bindings({"N": 64}, 2, parts={"N": (60, 4)}))
    apart = ["launch", *["ncclAllReduce"] * 2, "launch", "launch"]
    assert queued(made.text) == ["ncclReduceScatter", *apart, "ncclAllGather"]
    assert any("the totals of norm_p, norm_u take an AllReduce" in note for note in made.notes)


def test_a_pipeline_sends_to_the_next_group_and_overlaps_nothing() -> None:
    made = nccl.generate(pipeline(), Bindings({"B": 1, "S": 4, "H": 8}, 2, groups=2))
    sent = ["session.rank + 2 < 4 ? ncclSend", "session.rank >= 2 ? ncclRecv"]
    between = ["launch", "ncclGroupStart", *sent, "ncclGroupEnd"]
    assert queued(made.text) == ["ncclReduceScatter", *between, "ncclAllGather"]
    assert any("run one after the other, not overlapped" in note for note in made.notes)
    assert made.text.count("session.rank / 2 >=") == 2  # the collectives of either group


def test_alltoall_is_sends_and_receives_in_a_group() -> None:
    made = nccl.generate(example("moe"), Bindings({"T": 8, "H": 4}, 2))
    assert queued(made.text) == ["launch", "launch", "ncclGroupStart", *["ncclSend", "ncclRecv"] * 2, "ncclGroupEnd"]


def test_ring_tiles_are_refused() -> None:
    for generate in (nccl.generate, nccl_device.generate):
        with pytest.raises(TypeRefusal, match="found the tiles of a ring, expected blocks"):
            generate(adam("ring_tile(2,8,4)"), Bindings({"N": 64}, 2))


def test_the_device_kernel_is_one_for_reduction_computation_and_gathering() -> None:
    (made,) = nccl_device.generate(adam(), Bindings({"N": 1003}, 4))
    assert made.windows == ("g", "ph")
    assert made.text.count("__global__") == 1
    assert made.text.count("ranks.sync(") == 2
    assert "using Slice = BlockSlice<1, 1003, 1, 4>;" in made.text
    with pytest.raises(TypeRefusal, match="found a norm or another reduction"):
        nccl_device.generate(lamb(), Bindings({"N": 64}, 2, parts={"N": (60, 4)}))


def header_folder() -> Path:
    """Where NCCL's headers lie; the test is skipped where they, or nvcc, are missing."""
    if shutil.which("nvcc") is None:
        pytest.skip("found no nvcc")
    spec = find_spec("nvidia.nccl") if find_spec("nvidia") else None
    folders = [Path(folder) / "include" for folder in (spec.submodule_search_locations or [])] if spec else []
    found = [folder for folder in folders if (folder / "nccl.h").exists()]
    if not found:
        pytest.skip("found no headers of NCCL; install the extra nccl")
    return found[0]


def test_lamb_on_nccl_compiles_and_spills_nothing() -> None:
    made = nccl.generate(lamb(), Bindings({"N": 1003}, 4, parts={"N": (1000, 3)}))
    found = resources(made.text, "sm_80", [header_folder()])
    assert len(found) == 3
    assert all(each.registers <= 128 and each.spill_stores == each.spill_loads == 0 for each in found), found


def test_a_device_kernel_compiles() -> None:
    (made,) = nccl_device.generate(adam(), Bindings({"N": 1003}, 4))
    (found,) = resources(made.text, "sm_90", [header_folder()])
    assert found.kernel == "fused_allreduce"
    assert found.spill_stores == 0
