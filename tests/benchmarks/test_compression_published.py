"""The networks and clusters of Espresso and Cupcake: sizes as published, and what the model is fitted to."""

from __future__ import annotations

import pytest

from benchmarks.compression.clusters import FACTORS, NVLINK, SERVER, iteration_us, problem
from benchmarks.compression.cupcake import EXPOSED_MS
from benchmarks.compression.networks import MIB, NETWORKS
from treadle.planner.passes.compression.decided import plain_groups
from treadle.planner.passes.compression.timeline_of import time_ns


@pytest.mark.parametrize("network", NETWORKS.values(), ids=list(NETWORKS))
def test_networks_have_the_sizes_that_the_papers_state(network):
    parameters = network.backward
    shared = network.name == "BERT-base"  # the papers count its output layer, which shares the embedding, once more
    assert len(parameters) + shared == network.tensors
    assert round(4 * sum(each.elements for each in parameters) / MIB) == network.mebibytes
    assert len({each.name for each in parameters}) == len(parameters)


def test_the_embedding_that_the_output_layer_shares_is_ready_last():
    for name in ("GPT2", "BERT-base", "LSTM"):
        first, *_, last = NETWORKS[name].backward
        assert last.elements == max(each.elements for each in NETWORKS[name].backward)
        assert first.elements < last.elements


def test_iterations_are_fitted_to_the_scaling_factors_of_fp32():
    cluster, factor = FACTORS["LSTM"]
    made = problem("LSTM", cluster, "dgc:0.01")
    assert iteration_us("LSTM") * 1000 / time_ns(made, plain_groups(made)) == pytest.approx(factor, abs=1e-3)


def test_the_backward_pass_has_its_share_of_an_iteration():
    made = problem("VGG16", NVLINK, "onebit", 90_000)
    assert (made.forward_ns, made.backward_ns) == (30_000_000, 60_000_000)
    assert not list(made.problems())


def test_exposed_communication_of_resnet50_is_as_published():
    """The rate of PCIe was chosen by it."""
    made = problem("ResNet50", SERVER, "dgc:0.01")
    assert time_ns(made, plain_groups(made)) / 1e6 - 48 == pytest.approx(EXPOSED_MS, rel=0.1)
