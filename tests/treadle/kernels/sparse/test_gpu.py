"""The kernels for GPUs, run by fibers: the same sets and sums in every order of threads."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from treadle.kernels.sparse import gpu
from treadle.kernels.sparse.gpu import GpuKernels, HashMemory
from treadle.planner.errors import InputError
from treadle.planner.passes.sparse.hashing import DEFAULT_SEEDS, ranged
from treadle.runtime.native_build import compile_library

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def kernels() -> GpuKernels:
    return GpuKernels("fibers")


def changed(folder: str) -> GpuKernels:
    """The kernels with the header that a folder of this one has in place of ours."""
    plain = gpu.texts()
    own = {path.name: path.read_text() for path in (HERE / folder).iterdir()}
    assert set(own) < set(plain)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "texts", lambda: {**plain, **own})
        return GpuKernels("fibers")


@pytest.fixture(scope="module")
def traced() -> GpuKernels:
    return changed("traced")


@pytest.fixture(scope="module")
def published() -> GpuKernels:
    return changed("published")


def sparse_rows(units: int, width: int, density: float = 0.2) -> Tensor:
    values = torch.randn(units, width)
    values[torch.rand(units) >= density] = 0
    return values


def occupied(values: Tensor) -> list[int]:
    return (values != 0).any(1).nonzero().flatten().tolist()


def by_part(found: Tensor, counts: list[int]) -> list[list[int]]:
    return [sorted(each.tolist()) for each in found.split(counts)]


def parts_of(units: list[int], parts: int) -> list[list[int]]:
    owners = ranged(np.array(units), DEFAULT_SEEDS[0], parts).tolist()
    return [[unit for unit, owner in zip(units, owners, strict=True) if owner == part] for part in range(parts)]


@pytest.mark.parametrize("width", [1, 3, 8, 21])
def test_collecting_finds_the_rows_that_are_not_zero(kernels: GpuKernels, width: int) -> None:
    for units in (1, 31, 64, 1000):
        values = sparse_rows(units, width)
        values[-1, -1] = float("nan")
        values[0] = -0.0
        for parts in (1, 3):
            memory = HashMemory.empty(parts, units, units, DEFAULT_SEEDS, "cpu")
            kernels.order = units + parts
            kernels.collect(memory, values)
            found, counts, missing = kernels.extracted(memory)
            assert by_part(found, counts) == parts_of(occupied(values), parts)
            assert missing == [0] * parts


def test_nothing_is_lost_in_a_thousand_orders(kernels: GpuKernels) -> None:
    units = list(range(0, 96, 3))
    indices, layouts = torch.tensor(units, dtype=torch.int32), set()
    memory = HashMemory.empty(3, 8, 16, DEFAULT_SEEDS, "cpu")
    for order in range(1000):
        kernels.order = order
        memory.clear()
        kernels.insert(memory, indices)
        found, counts, missing = kernels.extracted(memory)
        assert by_part(found, counts) == parts_of(units, 3), order
        assert missing == [0, 0, 0]
        layouts.add(tuple(found.tolist()))
    assert len(layouts) > 100  # the orders did differ


def test_the_published_test_and_store_loses_indices(published: GpuKernels) -> None:
    """Even where a thread looks at what it stored: two threads can both find the slot empty and both see their word."""
    indices, lost = torch.arange(32, dtype=torch.int32), 0
    memory = HashMemory.empty(1, 8, 32, DEFAULT_SEEDS, "cpu")
    for order in range(100):
        published.order = order
        memory.clear()
        published.insert(memory, indices)
        found, _, missing = published.extracted(memory)
        assert missing == [0]
        lost += len(found) < len(indices)
    assert lost


def test_what_does_not_fit_is_counted(traced: GpuKernels) -> None:
    """Adversarial: one function, by which all units of a part have one slot."""
    indices = torch.arange(0, 40, 4, dtype=torch.int32)
    for order in range(50):
        memory = HashMemory.empty(2, 4, 3, (2, 1), "cpu")
        traced.order = order
        traced.insert(memory, indices)
        found, counts, missing = traced.extracted(memory)
        units = indices.tolist()
        for part, each in enumerate(by_part(found, counts)):
            assert set(each) <= {unit for unit in units if unit // 2 % 2 == part}
            assert len(each) + missing[part] == sum(unit // 2 % 2 == part for unit in units)
        assert counts == [4, 0]
        assert missing == [6, 0]


def test_a_trace_by_hand(traced: GpuKernels) -> None:
    """Three parts by x mod 3; within one, slots x mod 4 and x div 4 mod 4, and three more taken in turn."""
    memory = HashMemory.empty(3, 4, 3, (1, 1, 4), "cpu")
    for unit in (3, 6, 15, 18, 27, 30, 33, 1, 13):
        traced.insert(memory, torch.tensor([unit], dtype=torch.int32))
    words = (memory.words - 1).view(3, 7).tolist()
    assert words == [[18, 33, 6, 3, 15, 27, 30], [-1, 1, -1, 13, -1, -1, -1], [-1] * 7]
    assert traced.extracted(memory)[1:] == ([7, 2, 0], [0, 0, 0])
    traced.insert(memory, torch.tensor([39], dtype=torch.int32))
    assert traced.extracted(memory)[1:] == ([7, 2, 0], [1, 0, 0])


def test_a_bitmap_by_hand(kernels: GpuKernels) -> None:
    own = torch.tensor([2, 5, 7, 11, 14], dtype=torch.int32)
    sums = torch.tensor([0.0, 1.5, -2.5, 0.0, 0.0]).view(5, 1)
    bitmap = kernels.marked(sums)
    assert bitmap.tolist() == [0b00110]
    assert kernels.decoded(bitmap, 5, own).tolist() == [5, 7]
    places = kernels.decoded(bitmap, 5)
    assert kernels.gather(sums, places).flatten().tolist() == [1.5, -2.5]


@pytest.mark.parametrize("width", [1, 5, 16])
def test_bitmaps_have_a_bit_for_each_row(kernels: GpuKernels, width: int) -> None:
    for units in (0, 1, 31, 32, 33, 700):
        values = sparse_rows(units, width)
        kernels.order = units
        bitmap = kernels.marked(values)
        bits = [(bitmap[unit // 32].item() >> unit % 32) & 1 for unit in range(len(bitmap) * 32)]
        assert [unit for unit, bit in enumerate(bits) if bit] == occupied(values)
        assert kernels.decoded(bitmap, units).tolist() == occupied(values)


@pytest.mark.parametrize("width", [1, 3, 16])
def test_sums_are_those_in_the_order_of_workers(kernels: GpuKernels, width: int) -> None:
    units = 300
    ranks = torch.randperm(units).to(torch.int32)
    sums, want = torch.zeros(units, width), torch.zeros(units, width)
    for worker in range(4):
        indices = torch.randperm(units)[:150].to(torch.int32)
        values = torch.randn(150, width) * 10**worker
        kernels.order = worker
        kernels.add(sums, ranks, indices, values)
        for index, row in zip(indices.tolist(), values, strict=True):
            want[ranks[index]] += row
    assert torch.equal(sums.view(torch.int32), want.view(torch.int32))


def test_gathered_rows_are_written_with_their_scale(kernels: GpuKernels) -> None:
    for width in (1, 7, 9):
        values, indices = torch.randn(100, width), torch.randperm(100)[:40].to(torch.int32)
        rows = kernels.gather(values, indices)
        assert torch.equal(rows, values[indices.long()])
        out = torch.zeros(100, width)
        kernels.write(out, indices, rows, 0.25)
        assert torch.equal(out, torch.zeros(100, width).index_put((indices.long(),), rows * 0.25))


def test_memory_that_the_kernels_do_not_take_is_refused() -> None:
    for parts, slots, serial, seeds in ((0, 4, 4, (1, 2)), (1, 0, 4, (1, 2)), (1, 4, 4, (1,)), (1, 4, 4, (1,) * 10)):
        with pytest.raises(InputError, match="expected a part, a slot and 2 to 9 seeds"):
            HashMemory.empty(parts, slots, serial, seeds, "cpu")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_nvcc_compiles_the_kernels(arch: str) -> None:
    assert compile_library(gpu.texts(), gpu.MAIN, "cuda", (), arch).is_file()
