"""Dealing units out to parts: nothing is lost, whatever the sizes, the threads and the collisions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from treadle.kernels.sparse import PartitionMemory
from treadle.kernels.sparse.library import library
from treadle.planner.errors import InputError
from treadle.planner.passes.sparse.hashing import DEFAULT_SEEDS, ranged

METHODS = ("hash", "count")


def gradient(units: int, width: int, density: float, seed: int = 0) -> torch.Tensor:
    make = torch.Generator().manual_seed(seed)
    return torch.randn(units, width, generator=make) * (torch.rand(units, 1, generator=make) < density)


def assert_dealt_out(found, units: torch.Tensor, parts: int) -> None:
    """The units, each in the part that its hash names."""
    assert torch.equal(found.indices.sort().values, units.int().sort().values)
    assert sum(found.counts) == len(units)
    assert len(found.counts) == parts
    expected = np.repeat(np.arange(parts), found.counts)
    assert (ranged(found.indices.numpy(), DEFAULT_SEEDS[0], parts) == expected).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("width", [1, 3, 16, 33])
@pytest.mark.parametrize("units", [0, 1, 17, 70_001])
def test_the_pass_over_a_dense_gradient_finds_every_unit_that_is_not_zero(method, width, units):
    values = gradient(units, width, 0.03)
    for parts, threads in ((1, 1), (3, 2), (16, 5)):
        memory = PartitionMemory(
            parts, max(1, units * 6 // 100 // parts), 3, DEFAULT_SEEDS, threads=threads, method=method
        )
        for _ in range(2):
            assert_dealt_out(memory.collect(values), values.any(1).nonzero().view(-1), parts)


@pytest.mark.parametrize("method", METHODS)
def test_minus_zero_is_zero_and_nan_is_not(method):
    values = torch.tensor([[-0.0, 0.0], [0.0, float("nan")], [0.0, -0.0], [1e-45, 0.0], [float("-inf"), 0.0]])
    found = PartitionMemory(1, 10, 1, DEFAULT_SEEDS, method=method).collect(values)
    assert sorted(found.indices.tolist()) == [1, 3, 4]


@pytest.mark.parametrize("method", METHODS)
def test_memory_that_is_far_too_small_grows_and_loses_nothing(method):
    units = torch.randperm(200_000)[:50_000].int()
    memory = PartitionMemory(4, 1, 0, DEFAULT_SEEDS, threads=3, method=method)
    assert_dealt_out(memory.partition(units), units, 4)
    assert memory.retries >= 1
    assert memory.grown > 0
    before = memory.retries
    assert_dealt_out(memory.partition(units), units, 4)
    assert memory.retries == before, "memory that has grown suffices the second time"


def test_units_that_all_hash_to_one_slot_end_up_in_serial_memory():
    slots, seed = 8, DEFAULT_SEEDS[1]
    every = np.arange(40_000)
    units = torch.from_numpy(every[ranged(every, seed, slots) == 5]).int()
    memory = PartitionMemory(1, slots, 10, DEFAULT_SEEDS[:2], threads=2)
    assert_dealt_out(memory.partition(units), units, 1)
    assert memory.retries > 0


@pytest.mark.parametrize("method", METHODS)
def test_the_largest_unit_number_is_kept(method):
    units = torch.tensor([0, 2**31 - 2, 2**31 - 1], dtype=torch.int32)
    assert_dealt_out(PartitionMemory(2, 3, 3, DEFAULT_SEEDS, method=method).partition(units), units, 2)


@pytest.mark.parametrize("method", METHODS)
def test_a_negative_index_is_refused(method):
    with pytest.raises(InputError, match="below 0"):
        PartitionMemory(2, 3, 3, DEFAULT_SEEDS, method=method).partition(torch.tensor([3, -1], dtype=torch.int32))


def test_the_compiled_hash_is_that_of_plans():
    words = np.array([0, 1, 2**31 - 1, 2**32 - 1], dtype=np.uint32)
    for seed in (0, *DEFAULT_SEEDS):
        for size in (1, 3, 1000, 2**31):
            compiled = [library().call("ranged", int(word), seed, size) for word in words]
            assert compiled == ranged(words, seed, size).tolist()
