"""Hash memory that a dense step overflows grows, and a partition by slots adds up less than everything."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.treadle.runtime.sparse.gradients import coo, dense_sum
from tests.treadle.runtime.sparse.plans import decisions_of
from treadle.planner.passes.sparse.hashing import DEFAULT_SEEDS, ranged
from treadle.runtime.sparse.exchange import exchange_all, gradients_of, grown

UNITS = 2000


def spread(rank: int, entries: int) -> Tensor:
    indices = np.random.default_rng(rank).permutation(UNITS)[:entries]
    return coo(indices, torch.ones(entries, 1), UNITS)


def test_a_step_ten_times_as_dense_loses_nothing_and_says_what_grew() -> None:
    decisions = decisions_of(("table", "zen", "coo", UNITS, 1), machines=4, slots=(20, 2))
    ranks = [gradients_of(decisions, rank) for rank in range(4)]
    growths = []
    for entries in (40, 40, 400, 40, 400):
        gradients = [spread(rank, entries) for rank in range(4)]
        sums, tallies = exchange_all(ranks, "table", gradients)
        assert all(torch.equal(each.to_dense(), dense_sum(gradients)) for each in sums)
        assert [each.nonzero for each in tallies] == [entries] * 4
        growths.append(tallies[0].growth)
    assert [each is not None for each in growths] == [False, False, True, False, False]
    growth = growths[2]
    assert growth is not None
    assert (growth.exchange, growth.nonzero, growth.units) == (2, 400, UNITS)
    assert growth.retries >= 1
    assert growth.before < growth.after
    assert "400 of 2000 units are not zero in exchange 2" in grown(growth)
    assert f"grown from {growth.before} to {growth.after} words" in grown(growth)


def test_all_units_in_one_part_lose_nothing() -> None:
    """Units that the first hash function sends to part 0 of 3, with one function within it and a single slot."""
    decisions = decisions_of(("table", "zen", "coo", UNITS, 1), machines=3, slots=(1, 1), seeds=DEFAULT_SEEDS[:2])
    units = np.flatnonzero(ranged(np.arange(UNITS), DEFAULT_SEEDS[0], 3) == 0)
    gradients = [coo(units[rank:], torch.ones(len(units) - rank, 1), UNITS) for rank in range(3)]
    sums, _ = exchange_all([gradients_of(decisions, rank) for rank in range(3)], "table", gradients)
    assert all(torch.equal(each.to_dense(), dense_sum(gradients)) for each in sums)


def rehashed(indices: NDArray[np.int64], slots: int) -> list[int]:
    """The slot of each index when those that collide are hashed over the whole memory again: it depends on the others
    that a rank has."""
    memory = [-1] * slots
    for index in indices.tolist():
        for seed in range(100):
            slot = int(ranged(np.array([index]), seed, slots)[0])
            if memory[slot] == -1:
                memory[slot] = index
                break
    return [memory.index(index) for index in indices.tolist()]


def test_parts_by_slot_send_an_index_to_several_owners() -> None:
    """The incomplete aggregation of "Zen: Near-Optimal Sparse Tensor Synchronization for Distributed DNN Training":
    owners have parts of a sum, of which a rank that takes a unit from one owner misses the rest."""
    parts, slots, generator = 4, 64, np.random.default_rng(5)
    sets = [np.sort(generator.permutation(60)[:30]) for _ in range(parts)]
    owners: dict[int, set[int]] = {}
    for indices in sets:
        for index, slot in zip(indices.tolist(), rehashed(indices, slots), strict=True):
            owners.setdefault(index, set()).add(slot * parts // slots)
    split = [index for index, found in owners.items() if len(found) > 1]
    assert split

    def with_parts(part_of: dict[int, NDArray[np.int64]]) -> NDArray[np.int64]:
        """Every unit as one owner adds it up, the last one of those that have any of it."""
        total = np.zeros(60, dtype=np.int64)
        for part in range(parts):
            mine = np.zeros(60, dtype=np.int64)
            for rank, indices in enumerate(sets):
                mine[indices[part_of[rank] == part]] += 1
            total = np.where(mine > 0, mine, total)
        return total

    complete = np.bincount(np.concatenate(sets), minlength=60)
    by_slot = {rank: np.array(rehashed(each, slots)) * parts // slots for rank, each in enumerate(sets)}
    by_index = {rank: ranged(each, DEFAULT_SEEDS[0], parts) for rank, each in enumerate(sets)}
    assert not np.array_equal(with_parts(by_slot), complete)
    assert np.array_equal(with_parts(by_index), complete)
