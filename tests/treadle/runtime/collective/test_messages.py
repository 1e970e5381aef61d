"""Programs on real processes give what torch.distributed gives: odd sizes, every dtype, whole numbers exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.codegen.collective.algorithms import decide, random_algorithm, ring_allreduce
from tests.codegen.collective.test_actions import swap
from tests.planner.passes.collective.build import MESH, line, ring
from tests.planner.plans import collective_plan
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.msccl import xml
from treadle.codegen.collective.program import BlockStep, CollectiveProgram, RankProgram, Threadblock
from treadle.planner.documents.pattern import Part, Pattern
from treadle.planner.documents.sketch import Hyperparameters
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.runtime.collective.compare import Measured, compare
from treadle.runtime.launch import launch

SIZES = (5, 4097)
DTYPES = ("bfloat16", "int32")
OPS = ("sum", "avg")
REAL = ("ncv4_ag_hier_4_LL.xml", "ncv4_ar_hier_12_Simple.xml")


def regular(collective: str) -> CollectiveDecisions:
    """A plan of two pieces on a ring of four, with root 1."""
    sketch = replace(MESH, hyperparameters=Hyperparameters(input_chunkup=2))
    return collective_plan(collective, ring(4), sketch, size_bytes=2**16, root=1).decisions


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
    "gather": lower(regular("gather")),
    "gather in place": lower(regular("gather"), inplace=True),
    "scatter": lower(regular("scatter")),
    "scatter in place": lower(regular("scatter"), inplace=True),
}


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest) -> dict[str, list[Measured]]:
    """All programs in one start of four processes; the real files only where they are available."""
    programs = dict(OWN)
    try:
        folder: Path = request.getfixturevalue("data_dir") / "msccl" / "msccl-scheduler"
        programs |= {name: xml.parse((folder / name).read_text(), name) for name in REAL}
    except pytest.skip.Exception:
        pass
    result: dict[str, list[Measured]] = {}
    for row in compare(programs, None, sizes=SIZES, dtypes=DTYPES, ops=OPS, repeats=1, timeout=120):
        result.setdefault(row.program, []).append(row)
    return result


@pytest.mark.slow
@pytest.mark.parametrize("name", [*OWN, *REAL])
def test_results_are_those_of_torch(rows: dict[str, list[Measured]], name: str) -> None:
    if name not in rows:
        pytest.skip("TREADLE_DATA: no folder with real files here")
    reduces = any(word in name for word in ("ring", "reduce", "ar_hier"))
    assert len(rows[name]) == len(SIZES) * len(DTYPES) * (len(OPS) if reduces else 1)
    for row in rows[name]:
        assert row.good, row
        if row.dtype == "int32" or not reduces:
            assert row.max_error == row.tolerance == 0


def use(rank: int, world: int) -> dict[str, object]:
    """What a training loop sees of executors."""
    import torch

    from treadle.runtime.collective.messages import executor

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
    seen["swapped"] = executor(swap(), rank)(torch.full((3,), float(rank))).tolist()
    loop = executor(there_and_back(), rank)
    seen["there and back"] = loop(torch.arange(1.0, 5.0) if rank == 0 else torch.tensor([10.0, 20.0])).tolist()
    for name, call in {
        "op": lambda: outofplace(torch.ones(3), op="product"),
        "average": lambda: outofplace(torch.ones(3, dtype=torch.bool), op="avg"),
        "no memory": lambda: outofplace(torch.ones(3, device="meta")),
        "sparse": lambda: outofplace(torch.eye(3).to_sparse()),
        "out": lambda: outofplace(torch.ones(3), out=torch.empty(3, dtype=torch.float64)),
        "odd parts": lambda: scattering(torch.ones(3)),
        "ranks": lambda: executor(lower(ring_allreduce(3)), rank),
    }.items():
        try:
            call()
        except InputError as error:
            seen[name] = str(error)
    return seen


@pytest.mark.slow
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
        assert seen["swapped"] == [1.0 - rank] * 3
        assert seen["there and back"] == [[1 + 10 + 3, 2 + 20 + 4], []][rank]
        assert seen["op"] == "found op 'product', expected one of sum, avg, min, max"
        assert seen["average"] == "found op 'avg' of tensors of torch.bool, expected integers or floats"
        layout = "expected a dense one on the CPU"
        assert seen["no memory"] == f"found a tensor of layout torch.strided on meta, {layout}"
        assert seen["sparse"] == f"found a tensor of layout torch.sparse_coo on cpu, {layout}"
        expected = "expected 3 of torch.float32 on cpu"
        assert seen["out"] == f"found an out of 3 elements of torch.float64 on cpu, {expected}"
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

    from treadle.runtime.collective.messages import executor

    run = executor(xml.parse(text, "ring.xml"), rank)
    for turn in range(100_000):
        if rank == 2 and turn == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        run(torch.ones(100_000))


@pytest.mark.slow
def test_a_rank_killed_in_the_middle_is_named() -> None:
    text = xml.emit(lower(ring_allreduce(3)))
    with pytest.raises(CheckFailed, match="rank 2 was killed by signal 9"):
        launch(3, interrupted, (text,), timeout=120)


def there_and_back() -> CollectiveProgram:
    """Rank 1 adds its chunk to one of rank 0 and sends the sum back without keeping it; rank 0 adds its other chunk."""
    first = (
        Threadblock(send=1, recv=None, channel=0, steps=(BlockStep("s", ("i", 0), ("i", 0)),)),
        Threadblock(send=None, recv=1, channel=0, steps=(BlockStep("r", ("s", 0), ("s", 0), awaited=True),)),
        Threadblock(
            send=None,
            recv=None,
            channel=0,
            steps=(BlockStep("cpy", ("i", 1), ("o", 0)), BlockStep("re", ("s", 0), ("o", 0), depends=(1, 0))),
        ),
    )
    second = (Threadblock(send=0, recv=0, channel=0, steps=(BlockStep("rrs", ("i", 0), ("i", 0)),)),)
    ranks = (RankProgram(2, 1, 1, first), RankProgram(1, 0, 0, second))
    return CollectiveProgram("there and back", "custom", ranks, chunks_per_loop=1, channels=1)


@pytest.mark.slow
def test_a_pattern_is_compared_with_messages_of_torch() -> None:
    """A custom pattern with a part that starts at two ranks, one of which keeps it; two instances."""
    pattern = Pattern(version=1, name="reload", unit="1KiB", chunks=(Part((0, 1), (1, 2)), Part((2,), (0, 1))))
    decisions = collective_plan("custom", line(3), MESH, pattern=pattern, instances=2).decisions
    rows = compare({"p": lower(decisions)}, decisions, sizes=(0, 5, 4097), dtypes=("int32",), repeats=1, timeout=60)
    assert [row.elements for row in rows] == [0, 5, 4097]
    assert all(row.good and row.max_error == 0 for row in rows)
    assert [row.predicted_seconds is not None for row in rows] == [False, True, True]


def test_a_custom_file_without_a_plan_cannot_be_compared() -> None:
    with pytest.raises(InputError, match="found collective custom, expected one that can be compared"):
        compare({"swap": swap()}, None, sizes=(1,), dtypes=("float32",))
