"""Predictions of models: by numpy as by hand, the same for all batches, and a baseline next to them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.planner.passes.index.index_models import MODEL, drawn_model
from treadle.planner.passes.index.baseline import MeasuredTrace, baseline_scores, fitted_baseline
from treadle.planner.passes.index.buckets import buckets_of, nearest_bucket, vocabulary
from treadle.planner.passes.index.configurations import FragmentedLog, GappedArray, grid
from treadle.planner.passes.index.evaluator import log_throughputs, predicted_ns, shares
from treadle.planner.passes.index.families import drawn
from treadle.planner.passes.index.picture import picture
from treadle.planner.passes.index.problem import DrawnWorkload

WORKLOAD = drawn(DrawnWorkload(family="osm", bulk=3000, operations=2000, insert_share=0.4, seed=2))


def test_a_bucket_for_every_value_of_the_grid_and_the_nearest_for_others():
    parameters = vocabulary()
    chosen = [buckets_of(parameters, each) for each in grid()]
    assert len(set(chosen)) == len(grid())
    assert {each.name for each in parameters} == {
        *("gapped-array", "most_search", "most_shifts"),
        *("fragmented-log", "fragment_keys", "most_fragments", "new_fragments"),
    }
    keys = next(each for each in parameters if each.name == "fragment_keys")
    assert [nearest_bucket(keys, value) for value in (None, 1, 16, 22, 23, 300, 1e9)] == [0, 1, 1, 1, 2, 5, 6]


def test_predictions_are_rounded_times_of_all_operations():
    configurations = grid()
    found = predicted_ns(drawn_model(vocabulary()), WORKLOAD, configurations)
    assert len(found) == len(configurations)
    assert all(each == float(f"{each:.4g}") and each > 0 for each in found)
    assert 2000 * 1e9 / np.exp(14.625) <= min(found) <= max(found) <= 2000 * 1e9 / np.exp(13.875) * 1.001


def test_a_configuration_is_predicted_alone_as_among_others():
    model = drawn_model(vocabulary())
    together = predicted_ns(model, WORKLOAD, grid())
    assert [predicted_ns(model, WORKLOAD, [each])[0] for each in grid()[::9]] == together[::9]


def test_shares_are_probabilities():
    found = shares(MODEL.networks[0], picture(WORKLOAD), np.array([[0, 1], [1, 0], [1, 2]]))
    assert found.shape == (3, 4)
    assert found.min() > 0
    assert found.sum(axis=1) == pytest.approx([1, 1, 1])


def test_several_networks_vote_by_the_mean():
    one, two = drawn_model(vocabulary(), seed=1), drawn_model(vocabulary(), seed=2)
    both = drawn_model(vocabulary())
    both = type(both)(
        **{**{name: getattr(both, name) for name in both.__struct_fields__}, "networks": one.networks + two.networks}
    )
    seen, chosen = picture(WORKLOAD), np.array([buckets_of(vocabulary(), each) for each in grid()])
    mean = (log_throughputs(one, seen, chosen) + log_throughputs(two, seen, chosen)) / 2
    assert log_throughputs(both, seen, chosen) == pytest.approx(mean)


def trace(insert_share: float, logs: dict[int, float]) -> MeasuredTrace:
    buckets = np.array([buckets_of(vocabulary(), grid()[place]) for place in logs])
    return MeasuredTrace(
        "uniform", insert_share, np.zeros((3, 256, 256), np.float32), buckets, np.array([*logs.values()])
    )


def test_the_baseline_finds_the_share_from_which_other_leaves_are_best():
    gapped, log = 0, 50
    traces = [
        trace(share, {gapped: 15 + level, log: 15 + level + (0.5 if share > 0.4 else -0.5)})
        for level, share in enumerate(np.linspace(0, 1, 41))
    ]
    found = fitted_baseline(traces)
    assert len(found.thresholds) == 1
    assert 0.4 <= found.thresholds[0] <= 0.45
    for share, best in ((0.0, GappedArray), (0.3, GappedArray), (0.5, FragmentedLog), (1.0, FragmentedLog)):
        chosen = np.array([buckets_of(vocabulary(), grid()[place]) for place in (gapped, log, 99)])
        order = np.argsort(-baseline_scores(found, share, chosen))
        assert isinstance(grid()[(gapped, log, 99)[order[0]]], best)
        assert order[-1] == 2  # it was never measured


def test_a_baseline_of_few_traces_has_one_side():
    found = fitted_baseline([trace(0.5, {0: 15.0, 1: 14.0}), trace(0.9, {0: 15.0, 2: 15.5})])
    assert found.thresholds == ()
    assert len(found.ranked[0]) == 3
