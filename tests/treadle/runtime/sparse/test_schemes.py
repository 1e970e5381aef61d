"""Every scheme executes its rounds: all ranks get the sum of all gradients, in the form in which they were given."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.treadle.runtime.sparse.gradients import coo, dense_sum, random_gradients
from tests.treadle.runtime.sparse.plans import decisions_of
from treadle.planner.documents.sparsity import Form
from treadle.planner.passes.sparse.schemes import SCHEMES, Scheme
from treadle.planner.passes.sparse.traffic import traffic
from treadle.runtime.sparse.exchange import exchange_all, gradients_of

FORMS: tuple[Form, ...] = get_args(Form)
FLOATS = [scheme for scheme in SCHEMES if scheme.order(9) == "worker"]
SAME = [scheme for scheme in SCHEMES if scheme.order(9) != "none"]


def summed(scheme: str, form: Form, gradients: list[Tensor], devices: int = 1) -> list[Tensor]:
    """What each rank gets."""
    units, width = gradients[0].shape
    decisions = decisions_of(("table", scheme, form, units, width), machines=len(gradients) // devices, devices=devices)
    ranks = [gradients_of(decisions, rank) for rank in range(len(gradients))]
    return exchange_all(ranks, "table", gradients)[0]


def check_sets(sets: int, participants: tuple[int, ...]) -> int:
    """Exchanges of that many random index sets at least, spread over schemes and numbers of participants; the sets."""
    generator, seen = np.random.default_rng(18), 0
    pairs = [(scheme, n) for scheme in SCHEMES for n in participants]
    rounds = -(-sets // sum(n for _, n in pairs))
    for scheme, n in pairs:
        units, width = (1 + int(generator.integers(200))), int(generator.choice((1, 1, 3)))
        form = FORMS[int(generator.integers(2))]
        decisions = decisions_of(("table", scheme.name, form, units, width), machines=n)
        ranks = [gradients_of(decisions, rank) for rank in range(n)]
        for _ in range(rounds):
            gradients = random_gradients(generator, n, form, units, width)
            expected = dense_sum(gradients)
            for got in exchange_all(ranks, "table", gradients)[0]:
                assert torch.equal(got.to_dense(), expected), f"{scheme.name} of {n}, {form} {units} x {width}"
            seen += n
    return seen


def test_random_index_sets_give_the_dense_sum() -> None:
    assert check_sets(300, (2, 3, 5)) >= 300


@pytest.mark.slow
def test_ten_thousand_random_index_sets_give_the_dense_sum() -> None:
    assert check_sets(10_000, tuple(range(2, 17))) >= 10_000


@pytest.mark.parametrize("scheme", FLOATS, ids=lambda scheme: scheme.name)
def test_one_shot_schemes_add_floats_in_the_order_of_ranks(scheme: Scheme) -> None:
    gradients = random_gradients(np.random.default_rng(1), 6, "coo", 40, 2, whole=False)
    expected = dense_sum(gradients)
    for got in summed(scheme.name, "coo", gradients):
        assert got.to_dense().view(torch.int32).equal(expected.view(torch.int32))


@pytest.mark.parametrize("scheme", SAME, ids=lambda scheme: scheme.name)
def test_sums_of_floats_are_the_same_on_all_ranks(scheme: Scheme) -> None:
    gradients = random_gradients(np.random.default_rng(2), 7, "dense", 40, 2, whole=False)
    first, *others = summed(scheme.name, "dense", gradients)
    assert torch.allclose(first, dense_sum(gradients), atol=1e-5)
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scheme", ["zen", "sparcml", "omnireduce", "dense"])
@pytest.mark.parametrize(("machines", "devices", "units"), [(1, 3, 10), (3, 2, 11), (2, 4, 3)])
def test_ranks_of_a_node_divide_gradients(scheme: str, form: Form, machines: int, devices: int, units: int) -> None:
    gradients = random_gradients(np.random.default_rng(3), machines * devices, form, units, 2)
    for got in summed(scheme, form, gradients, devices):
        assert torch.equal(got.to_dense(), dense_sum(gradients))


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("ranks", [1, 3])
def test_empty_gradients_add_nothing(scheme: Scheme, ranks: int) -> None:
    empty = coo([], torch.zeros(0, 2), 5)
    for got in summed(scheme.name, "coo", [empty] * ranks):
        assert got.shape == (5, 2)
        assert got._nnz() == 0
    some = [empty] * (ranks - 1) + [coo([4, 1, 4], torch.ones(3, 2), 5)]
    for got in summed(scheme.name, "coo", some):
        assert got.is_coalesced()
        assert got.indices().tolist() == [[1, 4]]
        assert got.values().tolist() == [[1, 1], [2, 2]]


@pytest.mark.parametrize("scheme", ["zen", "sparcml", "agsparse", "ranges"])
def test_units_that_cancel_out_keep_their_index(scheme: str) -> None:
    """Which units a sum has follows from the indices alone, so bytes do as well."""
    one, other = coo([2, 3], torch.ones(2, 1), 6), coo([2], -torch.ones(1, 1), 6)
    for got in summed(scheme, "coo", [one, other]):
        assert got.indices().tolist() == [[2, 3]]
        assert got.values().tolist() == [[0], [1]]


def test_explicit_zeros_of_a_gradient_keep_their_index() -> None:
    for got in summed("zen", "coo", [coo([0, 5], torch.zeros(2, 1), 6), coo([], torch.zeros(0, 1), 6)]):
        assert got.indices().tolist() == [[0, 5]]


@pytest.mark.parametrize("scheme", ["dense", "omnireduce"])
def test_formats_without_indices_give_back_what_is_not_zero(scheme: str) -> None:
    for got in summed(scheme, "coo", [coo([1], torch.ones(1, 1), 9), coo([8], torch.ones(1, 1), 9)]):
        assert got.indices().tolist() == [[1, 8]]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_bytes_of_every_round_are_those_that_the_planner_counts(scheme: Scheme, form: Form) -> None:
    for n, units, width in ((2, 70, 1), (5, 40, 2), (8, 5, 3)):
        gradients = random_gradients(np.random.default_rng(4), n, form, units, width)
        decisions = decisions_of(("table", scheme.name, form, units, width), machines=n, block=4)
        ranks = [gradients_of(decisions, rank) for rank in range(n)]
        _, tallies = exchange_all(ranks, "table", gradients)
        sets = [nonzero(each) for each in gradients]
        played = traffic(scheme, sets, units, width, seed=decisions.seeds[0], block=4)
        for rank, tally in enumerate(tallies):
            found = [(sum(each.sent.values()), sum(each.received.values())) for each in tally.rounds]
            assert found == [(each.sent[rank], each.received[rank]) for each in played], (n, rank)


def nonzero(gradient: Tensor) -> np.ndarray:
    """Ascending units of a gradient: those with an index, or that are not zero."""
    if gradient.layout == torch.sparse_coo:
        return np.unique(gradient._indices()[0].numpy())
    return np.flatnonzero(gradient.any(1).numpy())
