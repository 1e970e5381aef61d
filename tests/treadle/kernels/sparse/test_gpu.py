"""The kernels for GPUs, run by fibers: the same sets and sums in every order of threads."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from treadle.kernels.sparse import PartitionMemory, aggregate, coalesce, decode, gpu, gpu_sums, owned, ranges
from treadle.kernels.sparse.gpu import GpuKernels, HashMemory
from treadle.kernels.sparse.owned import OwnedPart
from treadle.planner.errors import InputError
from treadle.planner.passes.sparse.hashing import DEFAULT_SEEDS, ranged
from treadle.runtime.kernel_texts import texts
from treadle.runtime.native_build import Target, compile_library

HERE = Path(__file__).parent
ATOMICS = """
#include "treadle_device.h"
extern "C" __attribute__((visibility("default"))) void atomics(uint32_t *word, uint32_t *before) {
    using namespace treadle;
    const auto work = [=] {
        before[0] = compare_and_swap(word, 0, 5);
        before[1] = compare_and_swap(word, 0, 6);
        before[2] = fetch_add(word, 2);
        set_in(word, 8);
        before[3] = uint32_t(ones_of(*word));
    };
#ifdef TREADLE_PROCESS
    work();
#else
    fibers::World world;
    world.queue(1, 1, work);
    world.run(1);
#endif
}
"""


@pytest.fixture(scope="module")
def kernels() -> GpuKernels:
    return GpuKernels("fibers")


def changed(folder: str) -> GpuKernels:
    """The kernels with the header that a folder of this one has in place of ours."""
    plain = texts("sparse")
    own = {path.name: path.read_text() for path in (HERE / folder).iterdir()}
    assert set(own) < set(plain)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "texts", lambda room: {**plain, **own})
        return GpuKernels("fibers")


@pytest.fixture(scope="module")
def traced() -> GpuKernels:
    return changed("traced")


@pytest.fixture(scope="module")
def published() -> GpuKernels:
    return changed("published")


def empty(parts: int, slots: int, serial: int, seeds: tuple[int, ...] = DEFAULT_SEEDS) -> HashMemory:
    return HashMemory.of(torch.zeros(parts * (slots + serial), dtype=torch.int32), parts, slots, serial, seeds)


def on_fibers(kernels: GpuKernels, *sizes: int, seeds: tuple[int, ...] = DEFAULT_SEEDS) -> PartitionMemory:
    return PartitionMemory(*sizes, seeds, kernels=kernels)


def numbers(*units: int) -> Tensor:
    return torch.tensor(units, dtype=torch.int32)


def sparse_rows(units: int, width: int, density: float = 0.2) -> Tensor:
    values = torch.randn(units, width)
    values[torch.rand(units) >= density] = 0
    return values


def occupied(values: Tensor) -> list[int]:
    return (values != 0).any(1).nonzero().flatten().tolist()


def by_part(found: Tensor, counts: list[int] | tuple[int, ...]) -> list[list[int]]:
    return [sorted(each.tolist()) for each in found.split(list(counts))]


def parts_of(units: list[int], parts: int) -> list[list[int]]:
    owners = ranged(np.array(units), DEFAULT_SEEDS[0], parts).tolist()
    return [[unit for unit, owner in zip(units, owners, strict=True) if owner == part] for part in range(parts)]


def same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


@pytest.mark.parametrize("width", [1, 3, 8, 21])
def test_collecting_finds_the_rows_that_are_not_zero(kernels: GpuKernels, width: int) -> None:
    for units in (0, 1, 31, 64, 1000):
        values = sparse_rows(units, width)
        values[-1:, -1] = float("nan")
        values[:1] = -0.0
        for parts in (1, 3):
            kernels.order = units + parts
            found = on_fibers(kernels, parts, units + 1, units).collect(values)
            assert by_part(*found) == parts_of(occupied(values), parts)


def test_nothing_is_lost_in_a_thousand_orders(kernels: GpuKernels) -> None:
    units = list(range(0, 96, 3))
    memory, layouts = on_fibers(kernels, 3, 8, 16), set()
    for order in range(1000):
        kernels.order = order
        found = memory.partition(numbers(*units))
        assert by_part(*found) == parts_of(units, 3), order
        layouts.add(tuple(found.indices.tolist()))
    assert memory.retries == 0
    assert len(layouts) > 100  # the orders did differ


def test_the_published_test_and_store_loses_indices(published: GpuKernels) -> None:
    """Even where a thread looks at what it stored: two threads can both find the slot empty and both see their word."""
    lost = 0
    for order in range(100):
        memory = empty(1, 8, 32)
        published.order = order
        published.insert(memory, torch.arange(32, dtype=torch.int32))
        found, _, missing = published.extracted(memory)
        assert missing == [0]
        lost += len(found) < 32
    assert lost


def test_what_does_not_fit_is_counted_and_the_memory_grows(traced: GpuKernels) -> None:
    """Adversarial: one function, by which all units of a part have one slot."""
    units = list(range(0, 40, 4))
    for order in range(50):
        traced.order = order
        small = empty(2, 4, 3, (2, 1))
        traced.insert(small, numbers(*units))
        found, counts, missing = traced.extracted(small)
        assert set(found.tolist()) < set(units)
        assert (counts, missing) == ([4, 0], [6, 0])
        memory = on_fibers(traced, 2, 4, 3, seeds=(2, 1))
        for _ in range(2):
            assert by_part(*memory.partition(numbers(*units))) == [units, []]
            assert memory.retries == 1
        assert memory.grown > 0


def test_an_index_below_zero_is_refused(kernels: GpuKernels) -> None:
    for index in (-1, -2):
        with pytest.raises(InputError, match="below 0"):
            on_fibers(kernels, 2, 8, 8).partition(numbers(3, index))


def test_a_trace_by_hand(traced: GpuKernels) -> None:
    """Three parts by x mod 3; within one, slots x mod 4 and x div 4 mod 4, and three more taken in turn."""
    memory = empty(3, 4, 3, (1, 1, 4))
    for unit in (3, 6, 15, 18, 27, 30, 33, 1, 13):
        traced.insert(memory, numbers(unit))
    words = (memory.words - 1).view(3, 7).tolist()
    assert words == [[18, 33, 6, 3, 15, 27, 30], [-1, 1, -1, 13, -1, -1, -1], [-1] * 7]
    assert traced.extracted(memory)[1:] == ([7, 2, 0], [0, 0, 0])
    traced.insert(memory, numbers(39))
    assert traced.extracted(memory)[1:] == ([7, 2, 0], [1, 0, 0])


def test_a_bitmap_by_hand(kernels: GpuKernels) -> None:
    listed, rank = numbers(2, 5, 7, 11, 14), torch.zeros(15, dtype=torch.int32)
    rank[listed.long()] = torch.arange(5, dtype=torch.int32)
    part = OwnedPart(15, 1, 0, 5, listed=listed, rank=rank)
    bitmap, sums = gpu_sums.aggregate(kernels, [(numbers(7, 5), torch.tensor([[-2.5], [1.5]]))], part)
    assert bitmap.tolist() == [0b00110]
    assert sums.flatten().tolist() == [1.5, -2.5]
    assert gpu_sums.decode(kernels, bitmap, part).tolist() == [5, 7]


@pytest.mark.parametrize("width", [1, 3, 16])
@pytest.mark.parametrize("kind", ["hashed", "ranges"])
def test_sums_and_bitmaps_are_those_of_the_cpu(kernels: GpuKernels, kind: str, width: int) -> None:
    """In the order of workers; units that nobody has are not sent, sums that are zero are."""
    for units in (1, 33, 700):
        parts = owned(units, 3, DEFAULT_SEEDS[0]) if kind == "hashed" else ranges(units, 3)
        for part in parts.parts:
            contributions = []
            for worker in range(4):
                some = part.indices[torch.rand(part.count) < 0.3]
                contributions.append((some, torch.randn(len(some), width) * 10**worker))
            contributions.append((contributions[0][0], -contributions[0][1]))
            kernels.order = units
            bitmap, sums = gpu_sums.aggregate(kernels, contributions, part)
            want = aggregate(contributions, part)
            assert torch.equal(bitmap, want[0])
            assert same_bits(sums, want[1])
            assert torch.equal(gpu_sums.decode(kernels, bitmap, part), decode(bitmap, part))


def test_units_of_another_part_and_ones_beyond_are_refused(kernels: GpuKernels) -> None:
    rows = torch.ones(1, 2)
    for parts in (owned(9, 2, DEFAULT_SEEDS[0]), ranges(9, 2)):
        foreign = int(parts[1].indices[0])
        for unit in (foreign, 9, -1):
            with pytest.raises(InputError, match="none of part 0"):
                gpu_sums.aggregate(kernels, [(numbers(unit), rows)], parts[0])
        with pytest.raises(InputError, match="none of part 0"):
            gpu_sums.decode(kernels, numbers(1 << parts[0].count), parts[0])


def test_entries_of_an_index_are_added_in_their_order(kernels: GpuKernels) -> None:
    for count, width in ((0, 1), (1, 3), (200, 1), (200, 9)):
        indices, values = torch.randint(0, 30, (count,)), torch.randn(count, width) * 10 ** torch.randn(count, 1)
        found, sums = gpu_sums.coalesce(kernels, indices, values, 30)
        want = coalesce(indices, values, 30)
        assert torch.equal(found, want[0])
        assert same_bits(sums, want[1])
    with pytest.raises(InputError, match="expected 0 to 4"):
        gpu_sums.coalesce(kernels, torch.tensor([1, 5]), torch.zeros(2, 1), 5)


def test_gathered_rows_are_written_with_their_scale(kernels: GpuKernels) -> None:
    for width in (1, 7, 9):
        values, indices = torch.randn(100, width), torch.randperm(100)[:40].to(torch.int32)
        rows = kernels.gather(values, indices)
        assert torch.equal(rows, values[indices.long()])
        out = torch.zeros(100, width)
        kernels.write(out, indices, rows, 0.25)
        assert torch.equal(out, torch.zeros(100, width).index_put((indices.long(),), rows * 0.25))


def test_indices_out_of_range_reach_no_memory(kernels: GpuKernels) -> None:
    values, out, indices = torch.ones(2, 1), torch.zeros(2, 1), numbers(-1, 2)
    assert kernels.gather(values, indices).isnan().all()
    kernels.write(out, indices, values, 1.0)
    assert not out.any()


def test_memory_that_the_kernels_do_not_take_is_refused() -> None:
    for slots, serial, seeds in ((4, 4, (1,)), (4, 4, (1,) * 10), (2**31, 0, (1, 2)), (1, 2**31, (1, 2))):
        with pytest.raises(InputError, match="2 to 9 seeds"):
            HashMemory.of(torch.empty(0), 1, slots, serial, seeds)


@pytest.mark.parametrize("target", ["fibers", "process"])
def test_atomic_operations_are_the_same_in_the_bodies_for_cpus(target: Target) -> None:
    library = ctypes.CDLL(str(compile_library({**texts("sparse"), "atomics.cpp": ATOMICS}, "atomics.cpp", target)))
    word, before = numbers(0), numbers(9, 9, 9, 9)
    library.atomics(ctypes.c_void_p(word.data_ptr()), ctypes.c_void_p(before.data_ptr()))
    assert word.tolist() == [5 + 2 | 8]
    assert before.tolist() == [0, 5, 5, 4]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_nvcc_compiles_the_kernels(arch: str) -> None:
    assert compile_library(texts("sparse"), gpu.MAIN, "cuda", (), arch).is_file()
