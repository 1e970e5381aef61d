"""Statistics of index sets: a worked example, brute force over all choices of participants, and what always holds."""

from __future__ import annotations

from itertools import combinations
from math import ceil
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.planner.documents import store
from treadle.planner.documents.sparsity import TensorSparsity
from treadle.probe import sparsity
from treadle.probe.index_sets import RecordedSets, RecordedTensor
from treadle.probe.sparsity import mean_unions, sparsity_of, tensor_sparsity

WORKED = [[1, 2, 3, 9], [1, 2, 4, 13], [1, 3, 4, 6], [2, 3, 4, 16]]
"""Four participants of 16 elements, counted from 1."""


def recorded(sets: list[list[list[int]]], units: int, width: int = 1, form: Any = "coo") -> RecordedTensor:
    unit: Any = "element" if width == 1 else "row"
    arrays = tuple(tuple(np.array(each, np.int32) for each in ranks) for ranks in sets)
    return RecordedTensor("tensor", form, unit, units, width, arrays)


def mean(found: TensorSparsity, participants: int) -> int:
    return next(each.mean for each in found.unions if each.participants == participants)


def skew(found: TensorSparsity, parts: int, participants: int) -> float:
    fullest = next(each.mean for each in found.fullest if (each.parts, each.participants) == (parts, participants))
    return fullest * parts / mean(found, participants)


def test_the_worked_example_has_its_densities_overlap_and_skew() -> None:
    found = tensor_sparsity(recorded([[[each - 1 for each in one] for one in WORKED]], 16))
    assert (mean(found, 1) / 16, mean(found, 4) / 16) == (1 / 4, 1 / 2)
    assert mean(found, 2) / mean(found, 1) == 1.5
    assert found.shared is not None
    assert (found.shared.mean, found.shared.deviation, sum(found.shared.counts)) == (0.5, 0.0, 6)
    assert (skew(found, 4, 1), skew(found, 4, 4)) == (3, 2)
    assert [each.counts for each in found.places][-1] == (1, 1, 1, 1, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1)


def test_three_participants_of_the_worked_example_have_seven_units() -> None:
    for three in combinations(WORKED, 3):
        means = mean_unions([[np.array(each) - 1 for each in three]], 16)
        assert means == {1: 4, 2: 6, 3: 7}


def test_steps_stand_for_participants_beyond_the_ranks() -> None:
    one_step = tensor_sparsity(recorded([[[each - 1 for each in one] for one in WORKED]], 16))
    four_steps = tensor_sparsity(recorded([[[each - 1 for each in one]] for one in WORKED], 16))
    assert [(each.participants, each.mean) for each in four_steps.unions] == [(1, 4), (2, 6), (4, 8)]
    assert four_steps.shared == one_step.shared
    two_by_two = tensor_sparsity(recorded([[[0], [1]], [[0], [1]], [[2], [3]]], 16))
    assert [(each.participants, each.mean) for each in two_by_two.unions] == [(1, 1), (2, 2), (4, 3), (6, 4)]


def test_entries_of_a_coo_gradient_are_counted_with_their_repeats() -> None:
    found = tensor_sparsity(recorded([[[5, 5, 5, 2]], [[1, 1]]], 8, width=4))
    assert (found.occurrences, mean(found, 1), found.unions[0].most) == (3, 2, 2)


def test_blocks_begin_where_their_range_does() -> None:
    # Rows of 128 elements: blocks of two rows. The second of two ranges of 10 begins at row 5: blocks 5-6, 7-8, 9.
    found = tensor_sparsity(recorded([[[5, 6, 7, 9]]], 10, width=128))
    assert [(each.block, each.mean) for each in found.blocks if each.parts == 2] == [(2, 3)]


def test_a_spike_of_one_step_shows_as_the_most() -> None:
    sets = [[[step]] for step in range(8)] + [[list(range(50))]]
    found = tensor_sparsity(recorded(sets, 64))
    assert found.unions[0].most == 50
    assert found.unions[-1].mean == 50


def test_ranges_larger_than_the_table_of_numbers_have_the_same_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = recorded([[[0, 5, 6, 7, 41], [7, 7, 20]], [[63, 0], [40, 41, 42]]], 64)
    whole = tensor_sparsity(tensor)
    monkeypatch.setattr(sparsity, "_PIECE", 7)
    assert tensor_sparsity(tensor) == whole
    assert mean(whole, 4) == 9


@pytest.mark.parametrize("sets", [[[[]]], [[[], []], [[], []]], [[[3]]], [[[]], [[0, 7]]]], ids=str)
def test_few_and_empty_sets_make_a_sound_document(sets: list[list[list[int]]]) -> None:
    document = sparsity_of(RecordedSets("few", (recorded(sets, 8),), {}))
    assert store.loads(store.dumps(document), "few", type(document)) == document
    assert document.tensors[0].shared is None


SETS = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 300)).flatmap(
    lambda size: st.tuples(
        st.lists(
            st.lists(st.lists(st.integers(0, size[2] - 1), max_size=30), min_size=size[1], max_size=size[1]),
            min_size=size[0],
            max_size=size[0],
        ),
        st.just(size[2]),
    )
)


@settings(max_examples=30, deadline=None)
@given(SETS)
def test_any_sets_have_a_sound_document_that_brute_force_agrees_with(given: tuple[list[list[list[int]]], int]) -> None:
    sets, units = given
    document = sparsity_of(RecordedSets("any", (recorded(sets, units),), {}))
    assert store.loads(store.dumps(document), "any", type(document)) == document
    found, ranks = document.tensors[0], len(sets[0])
    for each in found.unions:
        unions = all_unions(sets, each.participants)
        assert abs(each.mean - fmean(unions)) <= 0.5 + 1e-9
        assert ceil(fmean(unions) - 0.5) <= each.most <= max(unions)
        assert each.participants <= ranks or not each.participants % ranks
    means = {each.participants: each.mean for each in found.unions}
    assert list(means.values()) == sorted(means.values())
    assert all(value <= min(m * (means[1] + 0.5) + 0.5, units) for m, value in means.items())
    for part in found.fullest:
        assert -(-means[part.participants] // part.parts) <= part.mean <= means[part.participants]
    for blocks in found.blocks:
        assert blocks.mean <= ceil(ceil(units / blocks.parts) / blocks.block)


def all_unions(sets: list[list[list[int]]], m: int) -> list[int]:
    """Sizes of all sums over m participants: ranks of a step, or whole steps."""
    ranks = len(sets[0])
    if m <= ranks:
        return [len(set().union(*chosen)) for step in sets for chosen in combinations(step, m)]
    steps = [set().union(*step) for step in sets]
    return [len(set().union(*chosen)) for chosen in combinations(steps, m // ranks)]
