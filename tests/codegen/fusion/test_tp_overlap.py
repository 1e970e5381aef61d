"""Overlap plans as Megatron-LM's YAML: keys and values as TransformerEngine's `initialize_ub` takes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.planner.machine.machines import profile
from treadle.codegen.fusion import tp_overlap
from treadle.planner.errors import InputError
from treadle.planner.machine.rates import machine_of
from treadle.planner.passes.fusion.decisions import FusionDecisions
from treadle.planner.passes.fusion.parsing import parse
from treadle.planner.passes.fusion.planning import plan_fusion
from treadle.planner.passes.fusion.program import Bindings
from treadle.planner.passes.fusion.ranking import FusionProblem

EXAMPLES = Path(__file__).parents[3] / "examples" / "fusion"
KEYS = {
    "pipeline": {"method", "num_sm", "cga_size", "set_sm_margin", "num_splits"},
    "ring_exchange": {"method", "num_sm", "cga_size", "set_sm_margin", "aggregate"},
}
"""What each method reads (TransformerEngine, `transformer_engine/pytorch/module/base.py`, `add_ub`)."""
LAYERS = {"pipeline": {"proj_fprop", "fc2_fprop"}, "ring_exchange": {"qkv_fprop", "fc1_fprop"}}


def decided(name: str, ranks: int = 8, **extents: int) -> FusionDecisions:
    program = parse((EXAMPLES / f"{name}.py").read_text(), name)
    machine = machine_of(profile("dgx2")).without_library
    return plan_fusion(FusionProblem(program, Bindings(extents, ranks), machine)).decisions


@pytest.mark.parametrize(
    ("name", "extents", "layer", "method"),
    [
        ("attention", {"B": 8, "S": 1024, "H": 3072}, "proj_fprop", "pipeline"),
        ("mlp", {"B": 8, "S": 1024, "H": 3072}, "fc2_fprop", "pipeline"),
        ("matmul_rs", {"T": 8192, "H": 4096, "F": 16384}, "fc2_fprop", "pipeline"),
        ("ag_matmul", {"T": 8192, "H": 4096, "F": 16384}, "fc1_fprop", "ring_exchange"),
        ("ag_matmul", {"T": 8192, "H": 4096, "F": 4096}, "qkv_fprop", "ring_exchange"),
    ],
)
def test_a_layer_has_settings_that_transformer_engine_knows(name, extents, layer, method):
    texts = tp_overlap.generate(decided(name, **extents))
    assert list(texts) == ["tp_comm_overlap.yaml"]
    settings = yaml.safe_load(texts["tp_comm_overlap.yaml"])
    assert list(settings) == [layer]
    assert layer in LAYERS[method]
    assert settings[layer]["method"] == method
    assert set(settings[layer]) <= KEYS[method]
    if method == "pipeline":
        assert set(settings[layer]) == KEYS[method]
        assert 1 <= settings[layer]["num_sm"] <= 32
        assert settings[layer]["num_sm"] % settings[layer]["cga_size"] == 0, "a cluster must fill"
        assert settings[layer]["num_splits"] == 4


@pytest.mark.parametrize(("width", "splits"), [(3072, 4), (3070, 2), (3073, 1)])
def test_pieces_of_a_product_are_equally_wide(width, splits):
    settings = tp_overlap.layers_of(decided("matmul_rs", T=8192, H=width, F=16384))["fc2_fprop"]
    assert settings["num_splits"] == splits


def test_rows_that_do_not_come_out_even_are_refused():
    decisions = decided("matmul_rs", T=8191, H=4096, F=16384)
    with pytest.raises(InputError, match="found 8191 rows of part on 8 ranks, expected as many on each"):
        tp_overlap.generate(decisions)


@pytest.mark.parametrize(("name", "extents"), [("sgd", {"N": 2**20}), ("moe", {"T": 512, "H": 64})])
def test_a_plan_without_an_overlapped_product_is_refused(name, extents):
    with pytest.raises(InputError, match=r"found no product that overlaps with a collective"):
        tp_overlap.generate(decided(name, **extents))


def test_a_library_s_product_overlaps_with_nothing() -> None:
    program = parse((EXAMPLES / "attention.py").read_text(), "attention")
    bindings = Bindings({"B": 8, "S": 1024, "H": 3072}, 8)
    plan = plan_fusion(FusionProblem(program, bindings, profile("dgx2")))
    with pytest.raises(InputError, match=r"found no product that overlaps .*; plan with --no-library"):
        tp_overlap.generate(plan.decisions)
