"""Programs on real processes give what torch.distributed gives: odd sizes, every dtype, whole numbers exactly."""

from __future__ import annotations

from pathlib import Path

import pytest

from codegen import msccl_xml
from codegen.lower import lower
from planner.errors import CheckFailed, InputError
from tests.codegen.algorithms import decide, random_algorithm, ring_allreduce
from treadle.runtime.compare import Row, compare
from treadle.runtime.launch import launch

SIZES = (0, 1, 5, 1000, 4097)
DTYPES = ("float32", "float64", "int64")
REAL = ("ncv4_ag_hier_4_LL.xml", "ncv4_ar_hier_12_Simple.xml")
OWN = {
    "ring": lower(ring_allreduce(4)),
    "ring in place": lower(ring_allreduce(4, instances=2), inplace=True),
    "allgather": lower(random_algorithm("allgather", 4, 3, 2, seed=1)),
    "allgather in place": lower(random_algorithm("allgather", 4, 2, 1, seed=2), inplace=True),
    "reducescatter": lower(random_algorithm("reducescatter", 4, 1, 2, seed=3)),
    "reducescatter in place": lower(random_algorithm("reducescatter", 4, 2, 1, seed=4), inplace=True),
    "alltoall": lower(random_algorithm("alltoall", 4, 1, 1, seed=5)),
    "broadcast": lower(random_algorithm("broadcast", 4, 4, 1, seed=6)),
    "reduce in place": lower(random_algorithm("reduce", 4, 3, 2, seed=7), inplace=True),
}


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest) -> dict[str, list[Row]]:
    """All programs in one start of four processes; the real files only where they are at hand."""
    programs = dict(OWN)
    try:
        folder: Path = request.getfixturevalue("data_dir") / "msccl" / "msccl-scheduler"
        programs |= {name: msccl_xml.parse((folder / name).read_text(), name) for name in REAL}
    except pytest.skip.Exception:
        pass
    result: dict[str, list[Row]] = {}
    for row in compare(programs, None, sizes=SIZES, dtypes=DTYPES, repeats=1, timeout=120):
        result.setdefault(row.program, []).append(row)
    return result


@pytest.mark.parametrize("name", [*OWN, *REAL])
def test_results_are_those_of_torch(rows: dict[str, list[Row]], name: str) -> None:
    if name not in rows:
        pytest.skip("TREADLE_DATA: no folder with real files here")
    assert len(rows[name]) == len(SIZES) * len(DTYPES)
    for row in rows[name]:
        assert row.good, row
        if row.dtype == "int64" or not any(word in name for word in ("ring", "reduce", "ar_hier")):
            assert row.max_error == row.tolerance == 0


def use(rank: int, world: int) -> dict[str, object]:
    """What a training loop sees of executors."""
    import torch

    from treadle.runtime.collective import executor

    seen: dict[str, object] = {}
    inplace = executor(lower(ring_allreduce(2), inplace=True), rank)
    outofplace = executor(lower(ring_allreduce(2)), rank)
    gathering = executor(lower(random_algorithm("allgather", 2, 1, 1, 0)), rank)
    scattering = executor(lower(random_algorithm("reducescatter", 2, 1, 1, 0)), rank)
    for size in (4, 7):
        gradient = torch.full((size,), float(rank + 1))
        seen[f"same memory {size}"] = inplace(gradient).data_ptr() == gradient.data_ptr()
        seen[f"summed {size}"] = gradient.tolist()
        kept = torch.full((size,), float(rank + 1))
        seen[f"result {size}"] = outofplace(kept).tolist()
        seen[f"input kept {size}"] = kept.tolist() == [rank + 1] * size
    matrix = torch.arange(6.0).reshape(3, 2) + 10 * rank
    seen["gathered"] = gathering(matrix).tolist()
    seen["transposed"] = outofplace(matrix.T).tolist()
    seen["scattered"] = scattering(torch.arange(8.0).reshape(4, 2)).tolist()
    seen["parameter"] = inplace(torch.nn.Parameter(torch.ones(3))).tolist()
    seen["empty"] = tuple(gathering(torch.empty(0, 5)).shape)
    for name, call in {
        "odd parts": lambda: scattering(torch.ones(3)),
        "ranks": lambda: executor(lower(ring_allreduce(3)), rank),
    }.items():
        try:
            call()
        except InputError as error:
            seen[name] = str(error)
    return seen


def test_executors_in_a_training_loop() -> None:
    for rank, seen in enumerate(launch(2, use, timeout=120)):
        for size in (4, 7):
            assert seen[f"same memory {size}"]
            assert seen[f"input kept {size}"]
            assert seen[f"summed {size}"] == seen[f"result {size}"] == [3.0] * size
        assert seen["gathered"] == [[0, 1], [2, 3], [4, 5], [10, 11], [12, 13], [14, 15]]
        assert seen["transposed"] == [[10, 14, 18], [12, 16, 20]]
        assert seen["scattered"] == [[[0, 2], [4, 6]], [[8, 10], [12, 14]]][rank]
        assert seen["parameter"] == [2, 2, 2]
        assert seen["empty"] == (0, 5)
        assert seen["odd parts"] == "found a tensor of shape (3,), expected a first dimension that 2 ranks divide"
        assert seen["ranks"] == "found 2 processes, expected the program's 3 ranks"


def test_one_rank_works() -> None:
    program = lower(decide("allreduce", 1, []))
    for row in compare({"alone": program}, None, sizes=(0, 1, 7), dtypes=("float32",), repeats=1, timeout=60):
        assert row.good
        assert row.max_error == 0


def interrupted(rank: int, world: int, text: str) -> None:
    """Rank 2 is gone in the middle of many allreduces."""
    import os
    import signal

    import torch

    from treadle.runtime.collective import executor

    run = executor(msccl_xml.parse(text, "ring.xml"), rank)
    for turn in range(100_000):
        if rank == 2 and turn == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        run(torch.ones(100_000))


def test_a_rank_killed_in_the_middle_is_named() -> None:
    text = msccl_xml.emit(lower(ring_allreduce(3)))
    with pytest.raises(CheckFailed, match="rank 2 was killed by signal 9"):
        launch(3, interrupted, (text,), timeout=120)
