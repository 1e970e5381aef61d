"""Process groups come and go; their streams go with them."""

from __future__ import annotations

import os

import pytest

from tests.codegen.collective.algorithms import ring_allreduce
from treadle.codegen.collective.lower import lower
from treadle.planner.errors import CheckFailed
from treadle.runtime.launch import launch


def regroup(rank: int, world: int) -> tuple[list[float], list[int], str]:
    """Results, open files after each group, and what a call says whose group was destroyed."""
    import torch
    from torch import distributed

    from treadle.runtime.collective.messages import executor

    program, files, results, said = lower(ring_allreduce(2)), [], [], ""
    for _ in range(4):
        groups = [distributed.new_group([0, 1]), distributed.new_group([2, 3])]
        mine = groups[rank // 2]
        call = executor(program, rank % 2, mine)
        results.append(call(torch.tensor([float(rank)])).item())
        distributed.destroy_process_group(mine)
        files.append(sum("socket" in name for name in map(_target, os.listdir("/proc/self/fd"))))
    kept = executor(lower(ring_allreduce(world)), rank)
    results.append(kept(torch.tensor([float(rank)])).item())
    try:
        call(torch.ones(1))
    except CheckFailed as error:
        said = str(error)
    return results, files, said


def _target(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return ""


@pytest.mark.slow
def test_streams_of_destroyed_groups_are_closed() -> None:
    for rank, (results, files, said) in enumerate(launch(4, regroup, timeout=120)):
        assert results == [1.0 if rank < 2 else 5.0] * 4 + [6.0]
        assert files[-1] <= files[0], files
        assert said == f"rank {rank % 2}: the process group of this call was destroyed or interrupted"
