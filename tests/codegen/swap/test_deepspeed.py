"""The DeepSpeed section of a swap plan: fields that DeepSpeed knows, and numbers that keep no more than the plan."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import nn, randn

from tests.codegen.swap.swap_plans import plan_with, swapped, timed
from treadle.capture.graph import capture
from treadle.capture.optimizer import with_optimizer
from treadle.codegen.swap.deepspeed import (
    FILE_NAME,
    README_NAME,
    generate,
    persistent,
    solved_ratio,
    solved_threshold,
    sub_groups,
)
from treadle.codegen.targets import generate as generate_target
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError

KNOWN = {
    "stage": int,
    "sub_group_size": int,
    "offload_optimizer": {"device": str, "pin_memory": bool, "ratio": float},
    "offload_param": {"device": str, "pin_memory": bool},
    "stage3_param_persistence_threshold": int,
    "stage3_model_persistence_threshold": int,
    "stage3_max_live_parameters": int,
    "stage3_max_reuse_distance": int,
    "stage3_prefetch_bucket_size": int,
}
"""Fields and types of `zero_optimization` in DeepSpeed 0.19 (runtime/zero/config.py and offload_config.py)."""

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=12)


def layers():
    widths = (64, 32, 48, 8, 64)
    model = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(widths)))
    return model, (randn(16, 64),), lambda model, x: model(x).square().mean()


@pytest.fixture(scope="module")
def trace() -> Trace:
    return timed(with_optimizer(capture(layers, "layers", "train"), "adam"))


@pytest.fixture(scope="module")
def bare() -> Trace:
    return timed(capture(layers, "layers", "train"))


def conforms(value, known) -> bool:
    if isinstance(known, dict):
        return isinstance(value, dict) and all(key in known and conforms(value[key], known[key]) for key in value)
    return type(value) is known


@pytest.mark.parametrize("share", [1, 2, 3, 4.5])
def test_the_section_has_known_fields_and_keeps_no_more_than_the_plan(trace, share):
    files, made = generate(swapped(trace, share), trace)
    section = json.loads(files[FILE_NAME])["zero_optimization"]
    assert section == made.section
    assert conforms(section, KNOWN)
    for found in (made.parameters, made.state):
        assert 0 <= found.kept <= found.planned <= found.bytes
    assert 0 <= section["offload_optimizer"]["ratio"] <= 1
    assert ("ratio" not in section["offload_optimizer"]) or section["stage"] in (2, 3)
    if section["stage"] == 2:
        assert section["offload_optimizer"]["ratio"] == 1


@pytest.mark.parametrize(("name", "share"), [("parameters", 2), ("state", 4.5)])
def test_text(trace, golden, name, share):
    """With little memory most parameters leave, with more of it a part of the optimizer's state."""
    files, _ = generate(swapped(trace, share), trace)
    golden(f"deepspeed/{name}.json", files[FILE_NAME])
    golden(f"deepspeed/{name}.md", files[README_NAME])


def test_what_a_trace_without_optimizer_says(bare):
    files, made = generate(swapped(bare, 1), bare)
    assert "offload_optimizer" not in made.section
    assert made.section["offload_param"] == {"device": "cpu", "pin_memory": True}
    assert "--optimizer adam" in files[README_NAME]


def test_plans_that_move_activations_alone_are_refused(bare):
    with pytest.raises(InputError, match="torch-offload"):
        generate(swapped(bare, 100), bare)


def test_another_trace_is_refused(trace):
    other = replace(
        trace, tensors=tuple(replace(tensor, id=f"{tensor.id}.", alias_of=None) for tensor in trace.tensors)
    )
    with pytest.raises(InputError, match="it is not the plan's"):
        generate(swapped(trace, 1), other)


def test_live_parameters_hold_what_one_layer_needs(trace):
    section = generate(swapped(trace, 1), trace)[1].section
    assert section["stage3_max_live_parameters"] >= 64 * 32
    assert section["stage3_max_live_parameters"] <= sum(p.numel() for p in layers()[0].parameters())
    assert 0 < section["stage3_prefetch_bucket_size"] <= section["stage3_max_live_parameters"]


def test_target(trace):
    made = generate_target(plan_with(swapped(trace, 3)), "plan.json", trace, "deepspeed")
    assert set(made.files) == {FILE_NAME, README_NAME, "plan.json"}
    assert made.facts["carried"]["state"]["bytes"] == 2 * made.facts["carried"]["parameters"]["bytes"] + 8 * 4


@given(elements=SIZES, size=st.integers(1, 100))
def test_sub_groups_are_cut_as_deepspeed_cuts_them(elements, size):
    """A group ends with the parameter that fills it; the last may be smaller; a size of all makes one."""
    groups = sub_groups(elements, size)
    assert groups == sorted(groups)
    filled = [sum(e for e, g in zip(elements, groups, strict=True) if g == at) for at in range(groups[-1] + 1)]
    assert all(found >= size for found in filled[:-1])
    for at in range(groups[-1] + 1):
        *before, _ = [e for e, g in zip(elements, groups, strict=True) if g == at]
        assert sum(before) < size or groups[-1] == 0


@given(elements=SIZES, resident=st.integers(0, 500))
def test_the_ratio_is_read_by_deepspeed_as_meant(elements, resident):
    """Its first int((1 - ratio) * n) sub-groups stay, and their state is what was promised, within the plan's."""
    state = [8 * count for count in elements]
    ratio, size, kept = solved_ratio(elements, state, resident)
    groups = sub_groups(elements, size)
    n = groups[-1] + 1
    staying = int((1 - ratio) * n)
    assert sum(s for s, group in zip(state, groups, strict=True) if group < staying) == kept <= resident
    if resident >= sum(state):
        assert kept == sum(state) or n == 1


@given(elements=SIZES, most=st.integers(0, 200))
def test_the_threshold_is_the_best_of_all(elements, most):
    threshold = solved_threshold(elements, most)

    def kept(threshold):
        return sum(elements[at] for at in persistent(elements, threshold, most))

    assert kept(threshold) <= most
    assert all((kept(other), -other) <= (kept(threshold), -threshold) for other in range(42))
