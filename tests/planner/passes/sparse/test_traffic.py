"""Bytes that are played for given sets: published examples, and the closed forms by which schemes are priced."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.passes.sparse.counts import GradientCounts
from treadle.planner.passes.sparse.hashing import DEFAULT_SEEDS, ranged
from treadle.planner.passes.sparse.problem import BlockCounts, SparseGradient, SparseProblem
from treadle.planner.passes.sparse.schemes import BY_NAME, SCHEMES, Scheme
from treadle.planner.passes.sparse.traffic import busiest, traffic
from treadle.planner.passes.sparse.volumes import volume

# Four participants and 16 units: any two sets share half of theirs.
SETS = [np.array(each) - 1 for each in ([1, 2, 3, 9], [1, 2, 4, 13], [1, 3, 4, 6], [2, 3, 4, 16])]
EVEN_SPREAD = {1: 0, 16: 0, 2: 1, 6: 1, 3: 2, 13: 2, 4: 3, 9: 3, 5: 0, 7: 0, 8: 1, 10: 1, 11: 2, 12: 2, 14: 3, 15: 3}
WORDS = {
    # scheme: words of indices and values, then messages that a count or bits stand before
    "dense": (24, 0),
    "agsparse": (24, 3),
    "sparcml": (20, 2),
    "sparse-ps": (42, 6),
    "omnireduce": (24, 6),
    "balanced": (18, 6),
    "zen": (12, 6),
}


@pytest.mark.parametrize("name", WORDS)
def test_the_example_of_four_participants_moves_the_words_worked_by_hand(name: str) -> None:
    scheme, (words, ahead) = BY_NAME[name], WORDS[name]
    part_of = np.array([EVEN_SPREAD[unit] for unit in range(1, 17)]) if scheme.balance == "balanced" else None
    assert busiest(traffic(scheme, SETS, 16, 1, block=2, part_of=part_of)) == 4 * (words + ahead)


def counted(sets: Sequence[np.ndarray], units: int, width: int, block: int) -> GradientCounts:
    """The counts of sets: the most over all choices of m of them, and over all parts."""
    n = len(sets)
    part_of = {
        "even": np.searchsorted(np.arange(1, n) * units // n, np.arange(units), side="right"),
        "hashed": ranged(np.arange(units), DEFAULT_SEEDS[0], n),
    }
    sums = [
        [np.unique(np.concatenate([sets[each] for each in chosen])) for chosen in combinations(range(n), m)]
        for m in range(1, n + 1)
    ]

    def fullest(parts: str) -> tuple[int, ...]:
        return tuple(max(int(np.bincount(part_of[parts][each], minlength=n).max()) for each in found) for found in sums)

    def blocks(found: list[np.ndarray]) -> int:
        starts = np.array([part * units // n for part in range(n)])
        return max(
            len({(each - starts[part]) // block for each in one if part_of["even"][each] == part})
            for one in found
            for part in range(n)
        )

    unions = tuple(max(len(each) for each in found) for found in sums)
    gradient = SparseGradient(
        name="table",
        form="coo",
        unit="row",
        units=units,
        width=width,
        occurrences=unions[0],
        unions=unions,
        even=fullest("even"),
        hashed=fullest("hashed"),
        densest=unions[0],
        blocks=BlockCounts(size=block, push=blocks(sums[0]), pull=blocks(sums[-1])),
    )
    link = GradientLink(beta_us_per_MB=1)
    return GradientCounts(
        SparseProblem(version=1, name="sets", machines=n, devices=1, gradients=(gradient,), inter=link), gradient
    )


def covers(scheme: Scheme, counts: GradientCounts) -> bool:
    """Whether the counts are those of the scheme's own parts: a hierarchy that folds has others, whose counts are
    scaled, and the sizes of hashed parts are expected ones."""
    folds = counts.folds and scheme.communication == "hierarchy" and scheme.partition == "parallel"
    return not folds and scheme.name != "zen"


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(2, 6),
    units=st.integers(6, 60),
    width=st.sampled_from([1, 3]),
    block=st.sampled_from([1, 4]),
    seed=st.integers(0, 2**32 - 1),
)
def test_closed_forms_are_never_below_what_is_played(n: int, units: int, width: int, block: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    sets = [np.flatnonzero(random.random(units) < random.random()) for _ in range(n)]
    counts = counted(sets, units, width, block)
    for scheme in SCHEMES:
        if covers(scheme, counts):
            played = busiest(traffic(scheme, sets, units, width, block=block))
            assert played <= volume(scheme, counts).bytes, scheme.name


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_closed_forms_are_exact_for_symmetric_sets(n: int) -> None:
    """In every part, even and hashed, each participant has one unit that all have and one that only it has."""
    units, width = 400 * n, 2
    hashed, even = ranged(np.arange(units), DEFAULT_SEEDS[0], n), np.arange(units) // 400
    for scheme in SCHEMES:
        part_of = hashed if scheme.balance == "balanced" else even
        own = [np.flatnonzero(part_of == part) for part in range(n)]
        # Multiples of the block, so that each is in a block of its own.
        sets = [
            np.sort(np.array([own[part][8 * place] for part in range(n) for place in (0, 1 + worker)]))
            for worker in range(n)
        ]
        counts = counted(sets, units, width, 8)
        if covers(scheme, counts):
            assert busiest(traffic(scheme, sets, units, width, block=8)) == volume(scheme, counts).bytes, scheme.name


def test_skewed_sets_overload_even_parts_and_not_hashed_ones() -> None:
    """All units in the first of 16 ranges: even parts leave everything to one owner, hashed ones deal it out."""
    units, n = 160_000, 16
    random = np.random.default_rng(3)
    sets = [np.sort(random.choice(units // n, 5000, replace=False)) for _ in range(n)]
    most = {
        name: max(traffic(BY_NAME[name], sets, units, 1)[0].received) / (8 * 5000 * (n - 1) / n)
        for name in ("sparse-ps", "balanced")
    }
    assert most["sparse-ps"] == pytest.approx(16, rel=0.01)
    assert most["balanced"] < 1.1


def test_bits_of_all_hashed_parts_together_are_one_for_each_unit() -> None:
    units, n = 15_000, 5
    sets = [np.arange(0)] * n
    pull = traffic(BY_NAME["zen"], sets, units, 1)[1]
    assert units / 8 <= sum(pull.sent) / (n - 1) <= units / 8 + 4 * n
