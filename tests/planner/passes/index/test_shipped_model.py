"""The models that ship: they rank by what a workload does, not by the order in which it does it."""

from __future__ import annotations

import numpy as np
import pytest

from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.index_model import IndexModel
from treadle.planner.documents.sources import SHIPPED, load_named
from treadle.planner.passes.index.configurations import GappedArray, grid
from treadle.planner.passes.index.evaluator import predicted_ns
from treadle.planner.passes.index.families import drawn
from treadle.planner.passes.index.operations import Workload
from treadle.planner.passes.index.problem import DrawnWorkload

NAMES = resources.names(SHIPPED[IndexModel])
GAPPED = np.array([isinstance(each, GappedArray) for each in grid()])


def workload(insert_share: float, family: str = "books", bulk: int = 50_000) -> Workload:
    return drawn(DrawnWorkload(family=family, bulk=bulk, operations=60_000, insert_share=insert_share, seed=4))


def logs(model: IndexModel, of: Workload) -> np.ndarray:
    return np.log(predicted_ns(model, of, grid()))


def test_one_ships():
    assert NAMES


@pytest.mark.parametrize("name", NAMES)
def test_time_bins_in_another_order_change_predictions_little(name):
    model, steady = load_named(IndexModel, name), workload(0.5)
    pieces = np.random.default_rng(1).permutation(256)
    order = np.concatenate([np.flatnonzero(np.arange(60_000) * 256 // 60_000 == each) for each in pieces])
    shuffled = steady._replace(operations=type(steady.operations)(*(part[order] for part in steady.operations)))
    before, after = logs(model, steady), logs(model, shuffled)
    assert abs(before - after).max() < 0.1
    assert np.corrcoef(before, after)[0, 1] > 0.99


@pytest.mark.parametrize("family", ["books", "osm", "fb", "uniform"])
@pytest.mark.parametrize("name", NAMES)
def test_more_inserts_move_the_ranking_from_gapped_arrays_to_fragmented_logs(name, family):
    model = load_named(IndexModel, name)

    def advantage(share: float) -> float:
        """How much longer the fastest gapped array takes than the fastest fragmented log, as a logarithm."""
        found = logs(model, workload(share, family))
        return float(found[GAPPED].min() - found[~GAPPED].min())

    assert advantage(0.0) < advantage(1.0)


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_model_says_how_good_it_is_and_is_small(name):
    model = load_named(IndexModel, name)
    assert {each.family for each in model.validation} == {"books", "osm", "fb"}
    assert not {each.family for each in model.validation} & set(model.training.families)
    assert len(store.dumps(model)) < 1_500_000
