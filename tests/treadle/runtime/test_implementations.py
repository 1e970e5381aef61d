"""Planned steps of the example models with all families of implementations: results, buffers and bytes."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Collection
from functools import cache
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from codegen.simulate_plan import simulate_plan
from planner import documents, resources
from planner.hardware import Hardware
from planner.implementations import with_implementations
from planner.memory.decisions import MemoryDecisions
from planner.memory.extract.problem import problem_from_trace
from planner.memory.planning import decide
from planner.memory.problem import MemoryProblem
from planner.memory.simulate import curve
from planner.memory.variants import FAMILIES, restrict
from planner.trace import Trace
from tests.codegen.plans import plan_with, schedule_keeping
from treadle.capture.costs import with_measured, with_roofline
from treadle.capture.graph import capture
from treadle.runtime.memory import apply
from treadle.runtime.meter import Meter, allocator_peak

MODELS: dict[str, dict[str, Any]] = {
    "resnet50:tiny": {},
    "vgg16:tiny": {},
    "googlenet:googlenet": {"batch": 2, "image_size": 32, "classes": 10},
    "mobilenet_v2:mobilenet_v2": {"batch": 2, "image_size": 32, "classes": 10},
    "unet:tiny": {},
    "gpt2:tiny": {},
    "lstm_lm:tiny": {"words": 3},
    "moe:tiny": {},
}
SAME_BITS = ("int", "inplace", "grad-inplace", "rng", "statistics")
BUDGETS = {"everything": 1, "every third": 3, "every twentieth": 20}
"""Which forward nodes are kept; the budget is the peak of the plan, so nothing is to spare."""


def build(name: str) -> tuple[nn.Module, tuple[Tensor, ...], Any]:
    module, function = name.split(":")
    torch.manual_seed(0)
    return getattr(importlib.import_module(f"examples.models.{module}"), function)(**MODELS[name])


@cache
def trace_of(name: str) -> Trace:
    hardware = documents.load(resources.locate("profiles", "cpu-2x2"), Hardware)
    return with_roofline(with_implementations(capture(lambda: build(name), name)), hardware)


@cache
def problem_of(name: str, families: tuple[str, ...]) -> MemoryProblem:
    return restrict(problem_from_trace(trace_of(name), 2**40), families)


@cache
def plain_step(name: str) -> tuple[nn.Module, Tensor]:
    model, inputs, loss = build(name)
    torch.manual_seed(1)
    result = loss(model, *inputs)
    result.backward()
    return model, result.detach()


def leanest(problem: MemoryProblem) -> tuple[int, ...]:
    """For each backward node the implementation that reads least, then one that writes into the gradient."""

    def weight(node: Any, way: int) -> tuple[int, bool, int]:
        impl = node.impls[way]
        return sum(problem.fwd[i].out_bytes for i in impl.needs), not impl.grad_inplace, impl.workspace_bytes

    return tuple(min(range(len(node.impls)), key=lambda way: weight(node, way)) for node in problem.bwd)


def decisions_of(name: str, families: tuple[str, ...], kept: Collection[int]) -> MemoryDecisions:
    problem = problem_of(name, families)
    schedule = schedule_keeping(problem, kept, leanest(problem))
    peak = decide(problem, schedule).bound_peak_bytes
    return decide(replace(problem, budget_bytes=peak), schedule)


@pytest.mark.parametrize(
    ("families", "every"),
    [*((SAME_BITS, every) for every in BUDGETS), (FAMILIES, "every third")],
    ids=[*(f"same kernels, keeping {every}" for every in BUDGETS), "all families"],
)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_buffers_and_peak(name, families, every):
    kept = range(0, 10**4, BUDGETS[every])
    decisions = decisions_of(name, families, kept)
    plain, expected = plain_step(name)
    model, inputs, _ = build(name)
    planned = apply(model, plan_with(decisions), trace_of(name))
    torch.manual_seed(1)
    with Meter(planned, inputs) as meter:
        found = planned(*inputs)
        found.backward()
    pairs = [(expected, found.detach()), *zip(plain.buffers(), planned.buffers(), strict=True)]
    for a, b in (*pairs, *((p.grad, q.grad) for p, q in zip(plain.parameters(), planned.parameters(), strict=True))):
        if families == SAME_BITS and name != "lstm_lm:tiny":  # which adds its gradients up in another order
            assert torch.equal(a, b)
        else:
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4 * float(a.abs().max()))
    assert meter.peak_bytes <= decisions.exact_peak_bytes <= decisions.problem.budget_bytes
    unused = decisions.problem.base["rng_state"]
    assert meter.peak_bytes >= 0.98 * (decisions.exact_peak_bytes - unused)


def test_measured_costs_predict_what_the_allocator_hands_out():
    """With the workspaces of PyTorch's own kernels, which no tensor shows."""
    trace = with_measured(with_implementations(capture(lambda: build("vgg16:tiny"), "vgg16:tiny")))
    problem = problem_from_trace(trace, 2**40)
    model, inputs, _ = build("vgg16:tiny")
    for every in (1, 3):
        decisions = decide(problem, schedule_keeping(problem, range(0, 10**4, every), leanest(problem)))
        planned = apply(copy.deepcopy(model), plan_with(decisions), trace)
        found = allocator_peak(lambda planned=planned: planned(*inputs).backward(), planned, inputs)
        assert 0.98 * decisions.exact_peak_bytes <= found <= decisions.exact_peak_bytes


def test_a_timeline_names_what_was_chosen_and_takes_the_time_of_the_plan():
    decisions = decisions_of("resnet50:tiny", FAMILIES, range(0, 10**4, 3))
    timeline = simulate_plan(plan_with(decisions))
    assert timeline.schedule.makespan == decisions.objective_ns
    labels = {label for label, _ in curve(decisions.problem, decisions.program)}
    assert labels == {task.name for task in timeline.tasks}
    assert {"aten.relu.default (in place)", "aten.threshold_backward.default (mask-inplace)"} <= labels
