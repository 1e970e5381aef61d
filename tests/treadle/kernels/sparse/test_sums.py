"""Sums of sparse gradients: in the order of workers and of entries, whatever the threads, and back to dense exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from treadle.kernels.sparse import PartitionMemory, aggregate, coalesce, decode, gather, owned, ranges, write
from treadle.planner.errors import InputError
from treadle.planner.passes.sparse.hashing import DEFAULT_SEEDS, ranged


def contribution(units: torch.Tensor, count: int, width: int, make: torch.Generator):
    chosen = units[torch.randperm(len(units), generator=make)[:count]]
    return chosen.contiguous(), torch.randn(len(chosen), width, generator=make)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("width", [1, 5, 32])
def test_entries_of_an_index_are_added_in_the_order_in_which_they_occur(width, threads):
    make = torch.Generator().manual_seed(0)
    indices = (torch.rand(60_000, generator=make) ** 6 * 5000).long()
    values = torch.randn(60_000, width, generator=make)
    found, sums = coalesce(indices, values, 5000, threads=threads)
    first = torch.full((5000,), 60_000).scatter_reduce_(0, indices, torch.arange(60_000), "amin")
    assert torch.equal(found.long(), first.argsort()[: len(found)])
    dense = torch.zeros(5000, width)
    np.add.at(dense.numpy(), indices.numpy(), values.numpy())
    assert torch.equal(sums, dense[found.long()])


def test_no_entries_and_no_units():
    found, sums = coalesce(torch.empty(0, dtype=torch.int64), torch.empty(0, 3), 0)
    assert (found.shape, sums.shape) == ((0,), (0, 3))
    none = torch.empty(0, dtype=torch.int32)
    assert gather(torch.empty(0, 3), none).shape == (0, 3)
    write(none, torch.empty(0, 3), torch.empty(0, 3))
    bitmap, sums = aggregate([(none, torch.empty(0, 3))], ranges(2, 5)[0])
    assert (bitmap.shape, sums.shape, decode(bitmap, ranges(2, 5)[0]).shape) == ((0,), (0, 3), (0,))


@pytest.mark.parametrize("hashed", [True, False])
def test_parts_have_each_unit_once_in_ascending_order(hashed):
    for units, parts in ((0, 1), (1, 3), (15, 3), (100_003, 16)):
        made = owned(units, parts, DEFAULT_SEEDS[0], threads=3) if hashed else ranges(units, parts)
        lists = [part.indices for part in made]
        assert torch.cat(lists).sort().values.tolist() == list(range(units))
        for number, part in enumerate(made):
            assert part.indices.tolist() == sorted(part.indices.tolist())
            if hashed:
                assert (ranged(part.indices.numpy(), DEFAULT_SEEDS[0], parts) == number).all()
                assert part.rank[part.indices.long()].tolist() == list(range(part.count))


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("width", [1, 7])
@pytest.mark.parametrize("hashed", [True, False])
def test_sums_are_those_in_the_order_of_workers(hashed, width, threads):
    make = torch.Generator().manual_seed(1)
    made = owned(90_000, 3, DEFAULT_SEEDS[0]) if hashed else ranges(90_000, 3)
    for part in made:
        given = [contribution(part.indices, count, width, make) for count in (20_000, 0, 3, 25_000)]
        bitmap, sums = aggregate(given, part, threads=threads)
        dense = torch.zeros(90_000, width)
        for indices, values in given:
            dense[indices.long()] += values
        named = torch.cat([indices for indices, _ in given]).unique()
        assert torch.equal(decode(bitmap, part, threads=threads), named)
        assert torch.equal(sums, dense[named.long()])


def test_a_sum_that_cancels_out_is_sent_like_any_other():
    part = ranges(10, 1)[0]
    one = torch.tensor([4], dtype=torch.int32)
    bitmap, sums = aggregate([(one, torch.ones(1, 1)), (one, -torch.ones(1, 1))], part)
    assert (bitmap.tolist(), sums.tolist()) == ([1 << 4], [[0.0]])


def test_a_bitmap_by_hand():
    """Units 5 and 7 of a part of units 2, 5, 7, 11 and 14: bits 01100."""
    made = owned(15, 3, DEFAULT_SEEDS[0])
    assert sum(part.count for part in made) == 15
    part = next(part for part in made if part.count >= 3)
    chosen = part.indices[1:3].contiguous()
    bitmap, sums = aggregate([(chosen, torch.tensor([[2.5], [-1.0]]))], part)
    assert (bitmap.tolist(), sums.tolist()) == ([0b110], [[2.5], [-1.0]])
    assert torch.equal(decode(bitmap, part), chosen)


def test_rows_are_written_with_a_scale_between_zeros():
    out = torch.full((5, 3), 9.0)
    write(torch.tensor([3, 0], dtype=torch.int32), torch.ones(2, 3), out, 0.25)
    assert out[:, 0].tolist() == [0.25, 0, 0, 0.25, 0]


def test_wrong_units_and_bitmaps_are_refused():
    one, row = torch.tensor([5], dtype=torch.int32), torch.ones(1, 1)
    for part in (ranges(10, 2)[0], ranges(5, 1)[0], owned(4, 1, 0)[0]):
        with pytest.raises(InputError, match="found unit 5"):
            aggregate([(one, row)], part)
    for call in (lambda: gather(row, one), lambda: write(one, row, torch.ones(5, 1))):
        with pytest.raises(InputError, match="found unit 5, expected less than"):
            call()
    for index in (-1, 5):
        with pytest.raises(InputError, match=f"found index {index}"):
            coalesce(torch.tensor([index]), row, 5)
    with pytest.raises(InputError, match="beyond its part of 5"):
        decode(torch.tensor([1 << 5], dtype=torch.int32), ranges(10, 2)[0])
    with pytest.raises(InputError, match="2 words"):
        decode(torch.zeros(2, dtype=torch.int32), ranges(10, 2)[0])
    with pytest.raises(InputError, match="found values of float64"):
        gather(row.double(), one)


@pytest.mark.parametrize("case", range(30))
def test_dense_gradients_pass_through_the_kernels_exactly(case):
    make = torch.Generator().manual_seed(case)
    workers = (2, 3, 4, 8)[case % 4]
    units, width = (int(torch.randint(1, most, (1,), generator=make)) for most in (5000, 5))
    dense = torch.randint(-3, 4, (workers, units, width), generator=make).float()
    dense *= torch.rand(workers, units, 1, generator=make) < 0.05
    parts = owned(units, workers, DEFAULT_SEEDS[0])
    sent = []
    for gradient in dense:
        found = PartitionMemory(workers, 1 + units // 10, units // 100, DEFAULT_SEEDS).collect(gradient)
        values = gather(gradient, found.indices)
        sent.append(list(zip(found.indices.split(found.counts), values.split(found.counts), strict=True)))
    pulled = [(part, *aggregate([each[number] for each in sent], part)) for number, part in enumerate(parts)]
    assert sum(part.count for part in parts) == units
    out = torch.empty(units, width)
    write(
        torch.cat([decode(bitmap, part) for part, bitmap, _ in pulled]), torch.cat([sums for *_, sums in pulled]), out
    )
    assert torch.equal(out, dense.sum(0))
