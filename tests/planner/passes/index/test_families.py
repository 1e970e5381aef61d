"""Synthetic keys and workloads: as many as asked for, what lookups may ask for, the same for the same seed."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.planner.errors import InputError
from treadle.planner.passes.index.families import MOST, OUTLIERS, drawn, family_keys
from treadle.planner.passes.index.operations import INSERT, LOOKUP, payloads_of
from treadle.planner.passes.index.problem import DrawnWorkload, Family

FAMILIES = get_args(Family)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 100, 20_000])
def test_keys_of_a_family_ascend_and_are_the_same_for_the_same_seed(family: Family, count: int) -> None:
    keys = family_keys(family, count, 7)
    assert keys.dtype == np.uint64
    assert len(keys) == count
    assert (keys[1:] > keys[:-1]).all()
    assert np.array_equal(keys, family_keys(family, count, 7))
    if count == 20_000 and family != "sequence":
        assert not np.array_equal(keys, family_keys(family, count, 8))


def test_families_look_as_their_names_say() -> None:
    fb = family_keys("fb", 10_000, 1)
    assert (fb >= 1 << 63).sum() == OUTLIERS
    assert fb[-OUTLIERS - 1] < 1 << 36
    octaves = np.bincount(np.log2(family_keys("exponential", 10_000, 1).astype(float)).astype(int))
    assert octaves[9:63].min() >= 150  # below 2^8 there are fewer numbers than that
    assert octaves[9:63].max() <= 200
    steps = np.diff(family_keys("steps", 6400, 1))
    assert len(np.unique(steps)) <= 64
    zipf = np.diff(family_keys("zipf", 10_000, 1))
    assert np.median(zipf) <= 2
    assert zipf.max() > 1000
    assert family_keys("sequence", 5, 1).tolist() == [1, 2, 3, 4, 5]


workloads = st.builds(
    DrawnWorkload,
    family=st.sampled_from(FAMILIES),
    bulk=st.integers(0, 200),
    operations=st.integers(1, 400),
    insert_share=st.floats(0, 1),
    skew=st.sampled_from([0.0, 0.5, 1.0, 1.3, 2.0]),
    seed=st.integers(0, 1 << 62),
)


@given(workloads)
@settings(max_examples=150, deadline=None)
def test_lookups_ask_for_keys_that_are_there_and_inserts_for_keys_that_are_not(of: DrawnWorkload) -> None:
    inserts = round(of.operations * of.insert_share)
    if not of.bulk and not inserts:
        with pytest.raises(InputError, match="found no key to be loaded or inserted"):
            drawn(of)
        return
    workload = drawn(of)
    assert len(workload.keys) == of.bulk
    assert workload.counts() == (of.operations - inserts, inserts, 0, 0)
    assert workload.keys_at_end() == of.bulk + inserts
    there = set(workload.keys.tolist())
    for op, key in zip(workload.operations.ops.tolist(), workload.operations.keys.tolist(), strict=True):
        assert (key in there) == (op == LOOKUP)
        there.add(key)
    added = workload.operations.ops == INSERT
    assert np.array_equal(workload.operations.payloads[added], payloads_of(workload.operations.keys[added]))


def test_inserts_stand_in_a_random_order_and_skew_favours_few_keys() -> None:
    even, skewed = (
        drawn(DrawnWorkload(family="uniform", bulk=1000, operations=20_000, insert_share=0.5, skew=skew)).operations
        for skew in (0.0, 1.2)
    )
    first = even.first(10_000).counts()
    assert 4800 < first.inserts < 5200
    hottest = [np.unique(each.keys[each.ops == LOOKUP], return_counts=True)[1].max() for each in (even, skewed)]
    assert hottest[0] < 50
    assert hottest[1] > 1000


@pytest.mark.parametrize(("bulk", "operations"), [(MOST, 10), (10, MOST + 1), (1 << 62, 1 << 62)])
def test_a_workload_that_is_too_large_is_refused_before_anything_is_drawn(bulk: int, operations: int) -> None:
    with pytest.raises(InputError, match=f"expected at most {MOST}"):
        drawn(DrawnWorkload(family="books", bulk=bulk, operations=operations, insert_share=1.0))
