"""One step compared with plain PyTorch's: what is equal is said in one line, what differs is found by name."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from tests.codegen.plans import decisions_keeping, plan_with
from treadle.capture.graph import capture
from treadle.capture.load import build_step
from treadle.planner.errors import CheckFailed, InputError
from treadle.runtime.memory.apply import apply
from treadle.runtime.memory.verify import verify_capture


def layers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(), nn.Linear(8, 3))
    return model, (torch.randn(5, 6),)


class Transposed(nn.Linear):
    """The gradient of the softmax comes in other strides than fake tensors say, so that a view of it is a copy."""

    def forward(self, x):
        return super().forward(x).transpose(1, 2).log_softmax(1).transpose(1, 2).reshape(12, 5)


def transposed():
    return Transposed(8, 5), (torch.randn(2, 6, 8),)


def damaged(trace, target, other):
    """`trace` with another operator of the same arguments."""
    assert any(op.target == target for op in trace.ops)
    return replace(trace, ops=tuple(replace(op, target=other) if op.target == target else op for op in trace.ops))


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_a_capture_is_equal_to_the_last_bit(mode):
    found = verify_capture(build_step(layers, "layers"), capture(layers, "layers", mode))
    gradients = ", 6 gradients" if mode == "train" else ""
    assert (
        f"plain PyTorch: 1 output{gradients}, 3 buffers equal to the last bit; strides as captured; peak" in found.line
    )
    assert found.findings == ()


def test_what_differs_is_named():
    trace = damaged(capture(layers, "layers"), "aten.tanh.default", "aten.sigmoid.default")
    found = verify_capture(build_step(layers, "layers"), trace)
    assert found.findings[0].startswith("output 0 differs from plain PyTorch's by ")
    assert found.findings[1].startswith("the gradient of '0.weight' differs from plain PyTorch's by ")
    missing = damaged(capture(layers, "layers"), "aten.tanh.default", "aten.linalg_inv_ex.default")
    assert "the capture raised" in verify_capture(build_step(layers, "layers"), missing).findings[0]


def test_strides_that_cost_a_copy_are_named():
    found = verify_capture(build_step(transposed, "transposed"), capture(transposed, "transposed"))
    assert "1 in other strides than captured, first _log_softmax_backward_data" in found.line
    assert "equal to the last bit" in found.line
    assert len(found.findings) == 1
    assert "exceeds the promised" in found.findings[0]


def test_apply_verifies_a_plan_on_a_copy_of_the_model():
    trace = capture(layers, "layers")
    trace = replace(trace, entry=f"{__name__}:layers", ops=tuple(replace(op, time_ns=1) for op in trace.ops))
    plan = plan_with(decisions_keeping(trace, ()))
    model, _ = layers()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    assert apply(model, plan, trace).verified is None
    assert apply(model, plan, trace, verify=True).verified.startswith(
        "the plan and plain PyTorch: 1 output, 6 gradients"
    )
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    model[1].eps = 0.5
    with pytest.raises(CheckFailed, match="the plan is not verified: output 0 differs from plain PyTorch's by"):
        apply(model, plan, trace, verify=True)
    with pytest.raises(InputError, match="found no MODULE:FUNCTION"):
        apply(model, plan, replace(trace, entry=None), verify=True)


class Converting(nn.Module):
    """Turns autocast on itself, as models do that Accelerate prepared."""

    def __init__(self, enabled):
        super().__init__()
        self.enabled, self.last = enabled, nn.Linear(32, 4)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.enabled):
            return self.last(nn.functional.gelu(x))


@pytest.mark.parametrize("narrow", [True, False])
def test_values_are_compared_in_the_precision_that_the_step_itself_chose(narrow):
    torch.manual_seed(0)

    def converting():
        return Converting(narrow), (torch.linspace(-4, 4, 64 * 32).view(64, 32),)

    trace = capture(converting, "converting")
    assert (trace.autocast, trace.narrow) == (None, narrow)
    gelu = next(op for op in trace.ops if op.target == "aten.gelu.default")
    nearly = replace(gelu, kwargs={"approximate": "tanh"})
    rounded = replace(trace, ops=tuple(nearly if op is gelu else op for op in trace.ops))
    assert bool(verify_capture(build_step(converting, "converting"), rounded).findings) == (not narrow)
