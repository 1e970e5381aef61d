"""Ordinary training around a planned module that recomputes everything, in place and with masks."""

from __future__ import annotations

import copy
import io
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.codegen.plans import plan_with, schedule_keeping
from tests.treadle.runtime.memory.test_implementations import SAME_BITS
from treadle.capture.costs import with_roofline
from treadle.capture.graph import capture
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.trace import Trace
from treadle.planner.graph.implementations import with_implementations
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.extract.problem import problem_from_trace
from treadle.planner.passes.memory.methods.least_peak import least_peak_schedule
from treadle.planner.passes.memory.planning import decide
from treadle.planner.passes.memory.variants import restrict
from treadle.runtime.memory.apply import apply


class Small(nn.Module):
    """Batch statistics, dropout, and ReLU in place, small enough for many steps."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Flatten(),
            nn.Linear(96, 5),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.body(images)


def small() -> tuple[nn.Module, tuple[Tensor, ...], Any]:
    torch.manual_seed(0)
    return (
        Small(),
        (torch.randn(4, 3, 8, 8), torch.randint(5, (4,))),
        lambda m, x, y: nn.functional.cross_entropy(m(x), y),
    )


@cache
def planned_small() -> tuple[MemoryDecisions, Trace]:
    hardware = store.load(resources.locate("profiles", "cpu-2x2"), Hardware)
    trace = with_roofline(with_implementations(capture(small, "small")), hardware)
    problem = restrict(problem_from_trace(trace, 2**40), SAME_BITS)
    return decide(problem, schedule_keeping(problem, (), least_peak_schedule(problem).backward)), trace


def twins() -> tuple[nn.Module, nn.Module, tuple[Tensor, ...], Any]:
    decisions, trace = planned_small()
    model, inputs, loss = small()
    return copy.deepcopy(model), apply(model, plan_with(decisions), trace), inputs, loss


def assert_same_state(plain: nn.Module, planned: nn.Module) -> None:
    for a, b in zip((*plain.parameters(), *plain.buffers()), (*planned.parameters(), *planned.buffers()), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("steps", [1, 3])
def test_training_ends_in_the_same_parameters_and_running_statistics(steps):
    plain, planned, inputs, loss = twins()
    for model, call in ((plain, lambda: loss(plain, *inputs)), (planned, lambda: planned(*inputs))):
        torch.manual_seed(2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=False)
            call().backward()
            call().backward()  # accumulated, with another dropout
            optimizer.step()
    assert_same_state(plain, planned)


def test_two_forward_passes_before_their_backward_passes_in_any_order():
    for order in ((0, 1), (1, 0)):
        plain, planned, inputs, loss = twins()
        for call in (partial(loss, plain), planned):
            torch.manual_seed(2)
            losses = [call(*inputs), call(*inputs)]
            for index in order:
                losses[index].backward()
        assert_same_state(plain, planned)
        for a, b in zip(plain.parameters(), planned.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad)


def test_parameters_loaded_between_steps_are_used():
    plain, planned, inputs, loss = twins()
    state = {
        name: torch.randn_like(v) if v.is_floating_point() else v.clone() for name, v in plain.state_dict().items()
    }
    state |= {name: value.abs() + 0.1 for name, value in state.items() if "running_var" in name}
    for assign in (False, True):
        for model, call in ((plain, lambda: loss(plain, *inputs)), (planned, lambda: planned(*inputs))):
            model.load_state_dict(copy.deepcopy(state), assign=assign)
            torch.manual_seed(3)
            model.zero_grad()
            call().backward()
        assert_same_state(plain, planned)
        for a, b in zip(plain.parameters(), planned.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad)


def test_a_copy_and_a_file_run_the_same_kernels():
    plain, planned, inputs, loss = twins()
    file = io.BytesIO()
    torch.save(planned, file)
    file.seek(0)
    torch.manual_seed(4)
    loss(plain, *inputs).backward()
    for other in (copy.deepcopy(planned), torch.load(file, weights_only=False)):
        torch.manual_seed(4)
        other(*inputs).backward()
        assert_same_state(plain, other)
        for a, b in zip(plain.parameters(), other.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad)
