"""Networks learn to rank configurations by pictures: costs that are made up, and nothing where labels are shuffled."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.treadle.probe.index_costs import hardness, made_up_ns
from treadle.planner.documents import store
from treadle.planner.documents.index_model import IndexModel
from treadle.planner.passes.index.baseline import MeasuredTrace, fitted_baseline
from treadle.planner.passes.index.buckets import buckets_of, vocabulary
from treadle.planner.passes.index.configurations import grid
from treadle.planner.passes.index.evaluator import log_throughputs, shares
from treadle.planner.passes.index.families import drawn
from treadle.planner.passes.index.picture import picture, totals
from treadle.planner.passes.index.problem import DrawnWorkload
from treadle.probe.index_scores import mean_score, ranking, validated

torch = pytest.importorskip("torch")
from treadle.probe import index_training  # noqa: E402
from treadle.probe.index_training import quantile_classes, trained_networks  # noqa: E402

BUCKETS = np.array([buckets_of(vocabulary(), each) for each in grid()])


def traces(families: tuple[str, ...], count: int, seed: int) -> list[MeasuredTrace]:
    """Of these families in turn, with made-up costs of 30 configurations each."""
    random, found = np.random.default_rng(seed), []
    for number in range(count):
        share = float(random.random())
        workload = drawn(
            DrawnWorkload(
                family=families[number % len(families)], bulk=2000, operations=2000, insert_share=share, seed=number
            )
        )
        places = random.choice(len(grid()), 30, replace=False)
        hard = hardness(workload)
        ns = np.array([made_up_ns(grid()[place], workload, share, hard) for place in places])
        logs = np.log(2000 * 1e9 / ns) + random.normal(0, 0.02, len(ns))
        found.append(MeasuredTrace(families[number % len(families)], share, picture(workload), BUCKETS[places], logs))
    return found


@cache
def known() -> tuple[MeasuredTrace, ...]:
    return tuple(traces(("uniform", "lognormal", "steps", "exponential", "sequence"), 60, 1))


@cache
def others() -> tuple[MeasuredTrace, ...]:
    return tuple(traces(("books", "osm"), 8, 2))


def model_of(of: list[MeasuredTrace], epochs: int, seed: int = 0, networks: int = 1) -> IndexModel:
    found = trained_networks(of, vocabulary(), seed=seed, networks=networks, epochs=epochs)
    return IndexModel(
        version=1,
        name="made up",
        machine="none",
        edges=found.edges,
        centres=found.centres,
        parameters=vocabulary(),
        networks=found.networks,
        baseline=fitted_baseline(of),
        training={"traces": 1, "runs": 1, "seed": 0, "families": (), "repeat_spread": 0.0},
    )


def correlation(model: IndexModel) -> float:
    scores = [ranking(log_throughputs(model, each.picture, each.buckets), each.log_throughput) for each in others()]
    return mean_score(scores).rank_correlation


@pytest.mark.slow
def test_networks_rank_configurations_of_families_that_they_never_saw():
    model = model_of(list(known()), epochs=40)
    assert correlation(model) > 0.75
    for each in validated(model, others()):
        assert each.model.regret_10 <= each.model.regret_3 <= each.model.regret_1 < 0.15
        assert each.model.rank_correlation > each.baseline.rank_correlation - 0.1


@pytest.mark.slow
def test_from_shuffled_labels_nothing_is_learned():
    random = np.random.default_rng(5)
    shuffled = [each._replace(log_throughput=random.permutation(each.log_throughput)) for each in known()]
    assert abs(correlation(model_of(shuffled, epochs=15))) < 0.3


def test_numpy_predicts_what_torch_does():
    some = list(known()[:10])
    data = index_training._Data(some, quantile_classes(np.concatenate([each.log_throughput for each in some]))[0])
    network = index_training._Network([each.count for each in vocabulary()], 32, seed=3)
    assert list(index_training._trained(network, data, torch.linspace(13, 17, 32), 2, 3)) == [1, 2]
    found = network.document()
    for each in some:
        with torch.no_grad():
            logits = network(
                torch.from_numpy(each.picture)[None],
                torch.from_numpy(totals(each.picture).astype(np.float32))[None],
                torch.zeros(len(BUCKETS), dtype=torch.int64),
                torch.from_numpy(BUCKETS),
            )
        wanted = torch.softmax(logits, 1).numpy()
        assert shares(found, each.picture, BUCKETS) == pytest.approx(wanted, abs=1e-4)


def test_the_same_seed_gives_the_same_weights_and_another_one_others():
    some = list(known()[:9])
    first, again = (store.dumps(model_of(some, 2, networks=2)) for _ in range(2))
    assert first == again
    assert store.dumps(model_of(some, 2, seed=7, networks=2)) != first


def test_classes_hold_equal_counts_and_their_means():
    logs = np.random.default_rng(0).normal(15, 1, 3200)
    edges, centres = quantile_classes(logs)
    members = np.searchsorted(edges, logs, side="right")
    assert np.bincount(members).tolist() == [100] * 32
    assert centres == pytest.approx([logs[members == each].mean() for each in range(32)])


@pytest.mark.parametrize("logs", [[15.0, 15.0, 15.0], [14.0, 15.0], [14.0] * 50 + [15.0]])
def test_classes_of_few_values_stay_sound(logs):
    edges, centres = quantile_classes(np.array(logs))
    assert len(centres) == len(edges) + 1 >= 2
    assert edges == sorted(set(edges))


def test_a_perfect_ranking_loses_nothing_and_an_inverse_one_most():
    logs = np.log(np.arange(1.0, 21.0))
    perfect, inverse = ranking(logs, logs), ranking(-logs, logs)
    assert (perfect.top_1, perfect.regret_1, perfect.rank_correlation) == (1.0, 0.0, pytest.approx(1.0))
    assert (inverse.top_1, inverse.rank_correlation) == (0.0, pytest.approx(-1.0))
    assert [inverse.regret_1, inverse.regret_3, inverse.regret_10] == pytest.approx([0.95, 0.85, 0.5])
    assert ranking(np.zeros(20), logs).rank_correlation == 0
