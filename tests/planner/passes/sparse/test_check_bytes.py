"""The checker's bytes, messages and rounds are those of the rounds that are executed, with real index sets."""

from __future__ import annotations

import random
from collections import defaultdict

import numpy as np
import pytest

from tests.oracles.exact_sparse import Sets, most, parts_of, played, words
from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.passes.sparse.check_bytes import ExchangeSize, exchange_size
from treadle.planner.passes.sparse.hashing import DEFAULT_SEEDS, fullest_hashed, ranged
from treadle.planner.passes.sparse.problem import BlockCounts, SparseGradient, SparseProblem
from treadle.planner.passes.sparse.schemes import BY_NAME, SCHEMES, Scheme

SEED, BLOCK = DEFAULT_SEEDS[0], 4
ONE_GRADIENT = "emb"


def counted(scheme: Scheme, sets: Sets, units: int, width: int) -> ExchangeSize:
    """The checker's count, from the most units of any participants."""
    found = most(sets, units, SEED, BLOCK)
    gradient = SparseGradient(
        name=ONE_GRADIENT,
        form="dense",
        unit="row",
        units=units,
        width=width,
        occurrences=units,
        unions=found.unions,
        even=found.even,
        hashed=found.hashed,
        densest=found.unions[0],
        blocks=BlockCounts(size=BLOCK, push=found.push, pull=found.pull),
    )
    link = GradientLink(beta_us_per_MB=1.0)
    problem = SparseProblem(version=1, name="played", machines=len(sets), devices=1, gradients=(gradient,), inter=link)
    assert not list(problem.problems())
    return exchange_size(problem, gradient, scheme)


def of_real_parts(size: ExchangeSize, units: int) -> int:
    """Bytes with the bitmap of the largest part that there is, in place of the expected largest."""
    if size.scheme.name != "zen":
        return size.bytes
    largest = max(map(len, parts_of(units, size.n, SEED)))
    return size.bytes + (size.n - 1) * (words(largest) - words(fullest_hashed(units, size.n)))


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_no_set_of_indices_takes_more_bytes_than_counted(scheme: Scheme) -> None:
    rng = random.Random(scheme.name)
    for n in (2, 3, 4, 5, 8):
        if scheme.communication == "hierarchy" and scheme.partition == "parallel" and n & (n - 1):
            continue  # the fullest of n parts bounds no larger part
        units, width = rng.randint(20, 200), rng.randint(1, 4)
        sets = [frozenset(int(units * rng.random() ** 2) for _ in range(rng.randint(0, units))) for _ in range(n)]
        size, real = counted(scheme, sets, units, width), played(scheme, sets, units, width, SEED, BLOCK)
        assert of_real_parts(size, units) >= real.bytes
        assert (size.messages, size.rounds) == real[1:]


def symmetric(n: int, *, hashed: bool, disjoint: bool, units: int) -> Sets:
    """As many units of each participant in every part, be it of n or of the largest power of two."""
    core = 1 << (n.bit_length() - 1)
    cells = defaultdict(list)
    numbers = np.arange(units)
    found = ranged(numbers, SEED, n * core) if hashed else numbers * n * core // units
    for unit, cell in enumerate(found.tolist()):
        cells[cell].append(unit)
    first = [2 * rank if disjoint else 0 for rank in range(n)]
    return [frozenset(unit for cell in cells.values() for unit in cell[at : at + 2]) for at in first]


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_sets_that_are_alike_take_the_bytes_that_are_counted(scheme: Scheme, n: int) -> None:
    core = 1 << (n.bit_length() - 1)
    units = n * core * 48
    for disjoint in (False, True):
        sets = symmetric(n, hashed=scheme.balance == "balanced", disjoint=disjoint, units=units)
        size, real = counted(scheme, sets, units, 3), played(scheme, sets, units, 3, SEED, BLOCK)
        assert (of_real_parts(size, units), size.messages, size.rounds) == real


def test_words_of_four_participants_with_sixteen_elements() -> None:
    # W0 = {1, 2, 3, 9} and so on; indices count from 0 here. A COO message is preceded by a count.
    sets = [frozenset(each) for each in ((0, 1, 2, 8), (0, 1, 3, 12), (0, 2, 3, 5), (1, 2, 3, 15))]
    sizes = {name: counted(BY_NAME[name], sets, 16, 1) for name in ("dense", "agsparse", "sparcml", "sparse-ps")}
    real = {name: played(BY_NAME[name], sets, 16, 1, SEED, 2).bytes for name in (*sizes, "omnireduce")}
    assert real == {
        "dense": 4 * 24,
        "agsparse": 4 * (24 + 3),
        "sparcml": 4 * (8 + 12 + 2),
        "sparse-ps": 4 * (42 + 6),
        "omnireduce": 4 * (24 + 6),
    }
    assert {name: size.bytes for name, size in sizes.items()} == {name: real[name] for name in sizes}
