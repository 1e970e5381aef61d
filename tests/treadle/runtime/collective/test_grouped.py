"""Grouped messages give what PyTorch's own collectives give: within a process group, and between hosts of a lab."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.codegen.collective.algorithms import random_algorithm, ring_allreduce
from tests.codegen.collective.test_actions import swap
from tests.planner.plans import collective_plan
from tests.treadle.runtime.collective.wire.test_death_in_lab import in_lab
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.msccl import xml
from treadle.planner.documents import store
from treadle.planner.documents.pattern import Part, Pattern
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes.collective.sketching import propose
from treadle.probe.resolve import load_hardware
from treadle.runtime.launch import launch


def use(rank: int, world: int) -> dict[str, Any]:
    """What a caller sees of executors, on two ranks."""
    import torch
    from torch import distributed

    from treadle.runtime.collective import grouped
    from treadle.runtime.collective.grouped import grouped_executor

    group, seen = distributed.new_group(), dict[str, Any]()
    inplace = grouped_executor(lower(ring_allreduce(2), inplace=True), rank, group, "cpu")
    gradient = torch.full((7,), float(rank + 1))
    seen["same memory"] = inplace(gradient).data_ptr() == gradient.data_ptr()
    seen["summed"] = gradient.tolist()
    outofplace = grouped_executor(lower(ring_allreduce(2)), rank, group, "cpu")
    for op in ("sum", "avg", "min", "max"):
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64):
            seen[f"{op} {dtype}"] = outofplace(torch.tensor([rank + 1, 4 - rank], dtype=dtype), op=op).tolist()
    seen["swapped"] = grouped_executor(swap(), rank, group, "cpu")(torch.full((3,), float(rank))).tolist()
    gathering = grouped_executor(lower(random_algorithm("allgather", 2, 3, 1, 0)), rank, group, "cpu")
    seen["gathered"] = gathering(torch.arange(5.0) + 10 * rank).tolist()
    seen["empty"] = tuple(gathering(torch.empty(0, 5)).shape)
    for name, call in {
        "op": lambda: outofplace(torch.ones(3), op="product"),
        "device": lambda: outofplace(torch.ones(3, device="meta")),
        "ranks": lambda: grouped_executor(lower(ring_allreduce(3)), rank, group, "cpu"),
        "no NCCL": grouped.nccl_group,
    }.items():
        try:
            call()
        except Exception as error:
            seen[name] = f"{type(error).__name__}: {error}"
    distributed.barrier()
    if rank == 0:
        try:
            outofplace(torch.ones(3))
        except CheckFailed as error:
            seen["lost"] = str(error)
    else:
        distributed.destroy_process_group(group)
    return seen


def test_executors_of_grouped_messages() -> None:
    zero, one = launch(2, use, timeout=60)
    for seen in (zero, one):
        assert seen["same memory"]
        assert seen["summed"] == [3.0] * 7
        for dtype in ("float32", "float16", "bfloat16", "int32", "int64"):
            whole = dtype.startswith("int")
            assert seen[f"sum torch.{dtype}"] == [3, 7]
            assert seen[f"avg torch.{dtype}"] == ([1, 3] if whole else [1.5, 3.5])
            assert (seen[f"min torch.{dtype}"], seen[f"max torch.{dtype}"]) == ([1, 3], [2, 4])
        assert seen["gathered"] == [*range(5), *range(10, 15)]
        assert seen["empty"] == (0, 5)
        assert seen["op"].startswith("InputError: found op 'product'")
        assert "on meta, expected a dense one on the CPU" in seen["device"]
        assert seen["ranks"] == "InputError: found 2 processes, expected the program's 3 ranks"
        assert seen["no NCCL"].startswith("MissingBackendError: rank 0: found 0 GPUs and")
    assert (zero["swapped"], one["swapped"]) == ([1.0] * 3, [0.0] * 3)
    assert zero["lost"].startswith("treadle_allreduce_2: lost rank 1 in round 0: ")


METHODS = {
    "allreduce": ("ring", "halving-doubling", "recursive-doubling", "double-tree", "two-level", "hierarchical"),
    "allgather": ("ring", "halving-doubling", "recursive-doubling", "trees"),
    "reducescatter": ("ring", "halving-doubling", "greedy"),
    "alltoall": ("all-pairs", "hierarchical"),
    "broadcast": ("binomial", "greedy"),
    "reduce": ("binomial", "greedy"),
    "gather": ("greedy",),
    "scatter": ("greedy",),
}


@pytest.mark.slow
def test_every_collective_and_every_public_file_between_hosts(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four hosts of two ranks each; public files of other numbers of ranks run on fewer, or on more ranks a host."""
    folder = tmp_path / "programs"
    folder.mkdir()
    hosts = replace(load_hardware("hosts-2x2"), nodes=4)
    for collective, methods in METHODS.items():
        for method in methods:
            sketch = propose(hardware=hosts, collective=collective, size_bytes=2**16)
            try:
                plan = collective_plan(collective, hosts, sketch, size_bytes=2**16, method=method, root=3)
            except InputError:  # not every template suits every machine
                continue
            store.save(plan, folder / f"{collective}-{method}.plan.json")
    pattern = Pattern(version=1, name="reload", unit="1KiB", chunks=(Part((0, 7), (1, 6)), Part((2,), (0, 5))))
    plan = collective_plan("custom", hosts, propose(hosts, collective="custom"), pattern=pattern, method="greedy")
    store.save(plan, folder / "custom.plan.json")
    own = len(list(folder.iterdir()))
    assert own >= 15
    for file in sorted((data_dir / "msccl").glob("**/*.xml")):
        if len(xml.parse(file.read_text(), file.name).ranks) == hosts.ranks:
            shutil.copy(file, folder)
    printed = in_lab(hosts, "grouped_worker", [str(folder)], tmp_path, monkeypatch)
    assert [number for number, _ in printed.lines] == list(range(8)), printed.errors
    for _, rows in printed.lines:
        assert {name for name, *_ in rows} == {file.name for file in folder.iterdir()}
        assert all(error == 0 for *_, error in rows), [row for row in rows if row[-1]]


def test_a_call_reads_nothing_back_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors without contents: whatever would wait for a value, and so break a CUDA graph, is an error."""
    import torch
    from torch import distributed

    from treadle.codegen.collective.rounds import rounds_of
    from treadle.runtime.collective.grouped import InRounds
    from treadle.runtime.collective.messages import Executor

    groups: list[int] = []
    monkeypatch.setattr(distributed, "P2POp", lambda call, tensor, *, group, group_peer: tensor)
    monkeypatch.setattr(distributed, "batch_isend_irecv", lambda tensors: groups.append(len(tensors)) or [])
    for program in (lower(ring_allreduce(4), inplace=True), lower(random_algorithm("allreduce", 4, 2, 1, 0))):
        inplace = program.inplace
        own = rounds_of(program, inplace=inplace)[0]
        run = Executor(program, 0, InRounds(program.name, own, None, "meta"), inplace=inplace)
        for op in ("sum", "avg", "max"):
            groups.clear()
            result = run(torch.empty(1001, dtype=torch.bfloat16, device="meta"), op=op)
            assert (result.shape, result.device.type) == ((1001,), "meta")
            assert groups == [
                len(each.sends) + len(each.receives) for each in own.rounds if each.sends or each.receives
            ]
