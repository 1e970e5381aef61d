"""Pictures of workloads: what they show, and what does not change them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.planner.passes.index.families import drawn
from treadle.planner.passes.index.operations import DELETE, INSERT, LOOKUP, SCAN, Operations, Workload
from treadle.planner.passes.index.picture import LARGEST, SIDE, picture, totals
from treadle.planner.passes.index.problem import DrawnWorkload

KEYS = st.lists(st.integers(0, 2**64 - 1), max_size=40, unique=True)
OPERATIONS = st.lists(
    st.tuples(st.sampled_from([LOOKUP, INSERT, DELETE, SCAN]), st.integers(0, 2**64 - 1)), max_size=60
)


def workload(keys: list[int], operations: list[tuple[int, int]]) -> Workload:
    loaded = np.array(sorted(keys), np.uint64)
    ops = np.array([op for op, _ in operations], np.uint8)
    named = np.array([key for _, key in operations], np.uint64)
    return Workload(loaded, loaded, Operations(ops, named, named))


def counts(seen: np.ndarray) -> np.ndarray:
    return np.rint(np.expm1(seen.astype(np.float64))).sum(axis=(1, 2)).astype(int)


@given(KEYS, OPERATIONS)
def test_every_operation_is_in_one_cell_of_its_channel(keys, operations):
    seen = picture(workload(keys, operations))
    assert seen.shape == (3, SIDE, SIDE)
    assert seen.dtype == np.float32
    assert np.isfinite(seen).all()
    assert 0 <= seen.min() <= seen.max() <= LARGEST
    reads = sum(op in (LOOKUP, SCAN) for op, _ in operations)
    assert counts(seen).tolist() == [reads, len(operations) - reads, max(len(keys) - 1, 0)]


@given(KEYS, OPERATIONS, st.integers(0, 20))
def test_moving_keys_in_their_order_changes_rows_of_no_operation(keys, operations, shift):
    least = 2**44
    small = [(op, key % least) for op, key in operations]
    moved = [(op, key << shift) for op, key in small]
    some = [key % least for key in keys]
    before = picture(workload(sorted(set(some)), small))
    after = picture(workload(sorted({key << shift for key in some}), moved))
    assert (before[:2] == after[:2]).all()


def test_rows_are_ranks_whatever_a_few_huge_keys_are():
    plain = drawn(DrawnWorkload(family="uniform", bulk=20000, operations=20000, insert_share=0.5, seed=3))
    far = np.sort(plain.keys >> np.uint64(20))
    far[-20:] = np.arange(2**64 - 20, 2**64, dtype=np.uint64)
    outliers = plain._replace(
        keys=far, operations=plain.operations._replace(keys=plain.operations.keys >> np.uint64(20))
    )
    before, after = picture(plain), picture(outliers)
    rows = np.expm1(after[:2]).sum(axis=(0, 2))
    assert abs(rows[:-1] - rows[:-1].mean()).max() < 0.8 * rows.mean()
    assert abs(before[:2].mean() - after[:2].mean()) < 0.01


def test_time_runs_along_the_columns():
    early = workload([1, 2, 3], [(INSERT, 5)] * 100 + [(LOOKUP, 2)] * 100)
    seen = picture(early)
    assert not seen[0, :, : SIDE // 2].any()
    assert not seen[1, :, SIDE // 2 :].any()


def test_the_third_channel_shows_how_far_keys_are_apart():
    equal = picture(workload([100 * each for each in range(2000)], [(LOOKUP, 0)]))[2]
    assert (equal[:, SIDE // 2] > 0).all()
    assert not np.delete(equal, SIDE // 2, axis=1).any()
    doubled = picture(workload([2**each for each in range(64)], [(LOOKUP, 1)]))[2]
    assert (np.flatnonzero(doubled.any(axis=0)) % 4 == 0).all()  # whole octaves from the median
    assert np.count_nonzero(doubled) == 63


def test_totals_are_the_share_of_changes_and_the_sizes():
    of = drawn(DrawnWorkload(family="books", bulk=5000, operations=10000, insert_share=0.3, seed=1))
    assert totals(picture(of)) == pytest.approx([0.3, np.log(10001) / 16 - 0.5, np.log(5000) / 16 - 0.5], abs=1e-3)


@pytest.mark.parametrize("keys", [[], [7]])
@pytest.mark.parametrize("operations", [[], [(INSERT, 2**64 - 1)], [(LOOKUP, 0)]])
def test_hardly_any_keys_and_operations_make_a_picture(keys, operations):
    seen = picture(workload(keys, operations))
    assert counts(seen)[:2].sum() == len(operations)
    assert np.isfinite(totals(seen)).all()
