"""The benchmark of compiled kernels: its peers, and its empty table without a GPU."""

from __future__ import annotations

import pytest
import torch

from benchmarks.collective import gpu
from tests.codegen.collective.algorithms import line_alltoall, ring_allreduce
from treadle.codegen.collective.lower import lower


def test_messages_of_a_ring_and_of_a_line() -> None:
    """A ring allreduce of 4 ranks sends 6 quarters a rank; 8 messages of a third pass over the line."""
    assert gpu.message_bytes(lower(ring_allreduce(4, instances=2)), 4000) == 4 * 6 * 1000
    assert gpu.message_bytes(lower(line_alltoall()), 300) == 800


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    (table,) = gpu.throughput()
    assert table.rows == []
    assert table.notes == ("no GPU",)


def test_every_case_can_be_planned() -> None:
    for collective, method in gpu.CASES:
        assert len(gpu.program_of(collective, method, "Simple").ranks) == gpu.RANKS
