"""Models of learned indexes: what hostile or broken files may hold, and that whole ones come back as they were."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planner.passes.index.index_models import MODEL
from treadle.planner.documents import store
from treadle.planner.documents.index_model import IndexModel
from treadle.planner.errors import InputError


def changed(change: Callable[[Any], object]) -> str:
    raw = json.loads(store.dumps(MODEL))
    change(raw)
    return json.dumps(raw)


def set_at(*path: Any) -> Callable[[Any], object]:
    *inner, last, value = path

    def change(raw: Any) -> None:
        for each in inner:
            raw = raw[each]
        raw[last] = value

    return change


def encoded(*values: float) -> str:
    return base64.b64encode(np.array(values, "<f4").tobytes()).decode()


NETWORK = ("networks", 0)
KERNEL = (*NETWORK, "convolutions", 0)
BIAS = (*KERNEL, "bias")
BROKEN = {
    "edges out of order": (set_at("edges", [14, 13, 15]), "$.edges: found edges out of order"),
    "an edge too many": (set_at("edges", [1, 2, 3, 4]), "$.edges: found 4, expected 3"),
    "an infinite centre": (set_at("centres", 0, 1e31), "$.centres[0]"),
    "a centre beyond floats": (set_at("centres", 0, 800.0), "$.centres: found a throughput of over e^100"),
    "another parameter": (set_at("parameters", 0, "name", "fragment_keys"), "$.parameters[1].name"),
    "buckets out of order": (set_at("parameters", 1, "values", [64, 16]), "$.parameters[1].values"),
    "a bucket of nothing": (set_at("parameters", 1, "values", 0, 0.0), "$.parameters[1].values[0]"),
    "a bucket too many": (set_at("parameters", 1, "values", [1, 2, 3]), "$.networks[0].embeddings[1].shape"),
    "one embedding": (lambda raw: raw["networks"][0]["embeddings"].pop(), "$.networks[0].embeddings: found 1"),
    "no network": (set_at("networks", []), "$.networks"),
    "a bias of another size": (set_at(*BIAS, "shape", [3]), "bias.shape: found [3], expected [2]"),
    "a bias with more dimensions": (set_at(*BIAS, "shape", [2, 1]), "bias.shape: found [2, 1], expected [2]"),
    "no dimension": (set_at(*BIAS, "shape", []), "bias.shape"),
    "few bytes": (set_at(*BIAS, "data", encoded(1.0)), "bias.data: found 4 bytes, expected the 8 of 2 weights"),
    "no bytes": (set_at(*BIAS, "data", ""), "bias.data: found 0 bytes"),
    "not base64": (set_at(*BIAS, "data", "a weight?"), "bias.data: found a text that is not base64"),
    "not even ASCII": (set_at(*BIAS, "data", "Gewicht ä"), "bias.data: found a text that is not base64"),
    "a NaN": (set_at(*BIAS, "data", encoded(1.0, float("nan"))), "bias.data: found a weight that is not finite"),
    "an infinity": (set_at(*BIAS, "data", encoded(1.0, float("inf"))), "bias.data: found a weight that is not finite"),
    "a huge side": (set_at(*KERNEL, "weights", "shape", [2, 3, 4096, 4096]), "weights.shape: found 100663296 weights"),
    "a side beyond sizes": (set_at(*KERNEL, "weights", "shape", [2, 3, 10**9, 10**9]), "weights.shape[2]"),
    "too small a stride": (set_at(*KERNEL, "stride", 1), "stride: found a convolution of 155520000 numbers"),
    "no stride": (set_at(*KERNEL, "stride", 0), "convolutions[0].stride"),
    "a kernel over what is left": (set_at(*KERNEL, "stride", 4096), "found a side of 2, expected at most the 1"),
    "no layer": (set_at(*NETWORK, "classifier", []), "$.networks[0].classifier"),
    "another number of classes": (lambda raw: raw["networks"][0]["classifier"].pop(), "classifier[0].weights.shape"),
    "thresholds out of order": (set_at("baseline", "thresholds", [0.5, 0.25]), "$.baseline.thresholds"),
    "a side too few": (set_at("baseline", "thresholds", []), "$.baseline.ranked: found 2, expected 1"),
    "an unknown bucket": (set_at("baseline", "ranked", 0, 0, [1, 9]), "$.baseline.ranked[0][0]: found [1, 9]"),
    "a configuration twice": (set_at("baseline", "ranked", 0, [[1, 1], [1, 1]]), "$.baseline.ranked[0]"),
    "a side of nothing": (set_at("baseline", "ranked", 0, []), "$.baseline.ranked[0]"),
    "a certain loss": (set_at("validation", 0, "model", "regret_1", 1.5), "regret_1"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_model_is_refused_in_one_line(name):
    change, expected = BROKEN[name]
    with pytest.raises(InputError) as error:
        store.loads(changed(change), "model.json", IndexModel)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("ending", ["json", "yaml"])
def test_a_model_comes_back_as_it_was_saved(tmp_path, ending):
    path = tmp_path / f"model.{ending}"
    store.save(MODEL, path)
    assert store.load(path, IndexModel) == MODEL


@given(st.binary(max_size=12))
def test_weights_are_taken_for_what_they_are_or_refused(data):
    text = changed(set_at(*BIAS, "data", base64.b64encode(data).decode()))
    sound = len(data) == 8 and np.isfinite(np.frombuffer(data, "<f4")).all()
    try:
        model = store.loads(text, "model.json", IndexModel)
    except InputError:
        assert not sound
    else:
        assert sound
        bias = model.networks[0].convolutions[0].bias
        assert bias.array().astype("<f4").tobytes() == data
