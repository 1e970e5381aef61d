"""The published formulas give the paper's words and figures, our prices agree with them, and traces hit what they are
solved for."""

from __future__ import annotations

from itertools import combinations

import pytest

from benchmarks.sparse.clusters import SLOW, THROUGHPUTS, priced, throughput
from benchmarks.sparse.formulas import FORMULAS, Shape, dense
from benchmarks.sparse.published import power, synthetic
from benchmarks.sparse.traces import BERT, LSTM, MODELS, NMT
from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.passes.sparse.decided import decided
from treadle.planner.passes.sparse.problem import VERSION, BlockCounts, SparseGradient, SparseProblem

WORKERS = ({1, 2, 3, 9}, {1, 2, 4, 13}, {1, 3, 4, 6}, {2, 3, 4, 16})
"""Indices of four participants, from 1, of 16."""
WORDS = {
    "dense": 24,
    "AGsparse": 24,
    "SparCML": 20,
    "Sparse PS": 42,
    "OmniReduce": 24,
    "BP": 18,
    "Zen": 12.375,
    "lower bound": 7,
}


def unions(participants: int) -> float:
    """Non-zero indices in the sum of as many participants, the mean over sets of them."""
    sizes = [len(set.union(*chosen)) for chosen in combinations(WORKERS, participants)]
    return sum(sizes) / len(sizes)


def fullest(indices: set[int]) -> int:
    return max(sum(4 * part < index <= 4 * part + 4 for index in indices) for part in range(4))


@pytest.mark.parametrize("name", WORDS)
def test_words_of_a_small_case(name: str) -> None:
    """All parts are the even ones but for hashing, which can be perfect here; blocks have two indices."""
    whole = set.union(*WORKERS)
    skewness = max(fullest(worker) for worker in WORKERS), fullest(whole) / len(whole) * 4
    assert skewness == (3, 2)
    shape = Shape(4, lambda m: unions(m) / 16, skewness, blocks=(1, 1))
    assert 16 * FORMULAS[name](shape) == WORDS[name]


def test_agsparse_breaks_even_at_the_inverse_density() -> None:
    shape = power(40)
    assert FORMULAS["AGsparse"](shape) < dense(shape)
    assert FORMULAS["AGsparse"](power(64)) > dense(power(64))


def test_at_128_participants_sparcml_loses_and_balanced_parts_save_36_percent() -> None:
    shape = power(128)
    assert FORMULAS["SparCML"](shape) == pytest.approx(2.03, abs=0.005)
    assert dense(shape) == pytest.approx(1.98, abs=0.005)
    assert 1 - FORMULAS["BP"](shape) / dense(shape) == pytest.approx(0.36, abs=0.005)


def test_traces_have_the_published_points() -> None:
    for model in MODELS:
        assert model.present().mean() == pytest.approx(model.density, rel=1e-3)
    assert NMT.present(128).mean() == pytest.approx(0.615, abs=0.001)
    assert BERT.present(128).mean() == pytest.approx(0.408, abs=0.001)
    assert BERT.growth(128) == pytest.approx(38.5, abs=0.1)
    assert BERT.skewness(8) / 8 > 0.6
    assert LSTM.skewness(128) > 70


def test_index_sets_have_the_expected_density() -> None:
    sizes = [len(rows) / BERT.rows for rows in BERT.index_sets(50, seed=1)]
    assert sum(sizes) / 50 == pytest.approx(BERT.density, rel=0.03)


NAMES = {
    "dense": "dense",
    "agsparse": "AGsparse",
    "sparcml": "SparCML",
    "sparse-ps": "Sparse PS",
    "balanced": "BP",
    "omnireduce": "OmniReduce",
    "ring-incremental-centralized": "ring, centralized",
    "ring-incremental-parallel-balanced": "ring, parallel",
    "hierarchy-incremental-parallel-balanced": "hierarchy, parallel",
    "zen": "Zen",
}


@pytest.mark.parametrize("n", [2, 4, 16, 64])
def test_our_bytes_are_those_of_the_formulas(n: int) -> None:
    """Without latency and work, and with parts that are all alike but for even ranges."""
    units, shape = 1 << 24, synthetic(n)
    counts = tuple(round(units * shape.density(m)) for m in range(1, n + 1))
    push, pull = (round(skew * count / n) for skew, count in zip(shape.skewness, (counts[0], counts[-1]), strict=True))
    even = (push, *(min(count, max(push, -(-count // n))) for count in counts[1:-1]), pull)
    gradient = SparseGradient(
        name="embedding",
        form="dense",
        unit="element",
        units=units,
        width=1,
        occurrences=counts[0],
        unions=counts,
        even=even,
        hashed=tuple(-(-count // n) for count in counts),
        densest=counts[0],
        blocks=BlockCounts(size=256, push=push // 256, pull=pull // 256),
    )
    link = GradientLink(beta_us_per_MB=1)
    problem = SparseProblem(version=VERSION, name="any", machines=n, devices=1, gradients=(gradient,), inter=link)
    costs = {cost.scheme: cost.bytes / (4 * units) for cost in decided(problem).gradients[0].costs}
    for scheme, name in NAMES.items():
        assert costs[scheme] == pytest.approx(FORMULAS[name](shape), rel=0.02), name


def test_speed_ups_over_allreduce_are_fitted() -> None:
    for (model, cluster), (over_dense, _, _) in THROUGHPUTS.items():
        if cluster == SLOW.name:
            found = throughput(model, SLOW, over_dense)
            assert found.over_dense == pytest.approx(over_dense, rel=1e-6)
            assert found.computing_ms > 0


def test_zen_is_the_fastest() -> None:
    for model in (LSTM, NMT, BERT):
        ns = priced(model, SLOW)
        assert min(ns, key=lambda scheme: ns[scheme]) == "zen"
