"""Steps whose real strides differ from those of fake tensors train as plain PyTorch does."""

from __future__ import annotations

import copy

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn import functional as F

from tests.codegen.plans import decisions_keeping, plan_with
from treadle.capture.costs import with_roofline
from treadle.capture.graph import capture
from treadle.capture.live import capture_model
from treadle.capture.load import ModelStep
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.errors import InputError
from treadle.planner.graph.implementations import with_implementations
from treadle.runtime.memory.apply import apply
from treadle.runtime.memory.verify import verify_capture
from treadle.runtime.strides import copied, exact

LAST = {"memory_format": torch.channels_last}


class Layers(nn.Module):
    """Calls `function(layers, x)`."""

    def __init__(self, function, *layers):
        super().__init__()
        self.layers, self.function = nn.ModuleList(layers), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layers, x)


def normalised(function, *shape):
    """A linear layer, a normalisation over channels in the middle, another linear layer."""
    return lambda: (Layers(function, nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 5)), (torch.randn(*shape, 6),))


def groups():
    """The gradient that a split convolution makes is row by row where the capture expected channels last."""
    layers = nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8), nn.Conv2d(8, 4, 1)
    x = torch.randn(2, 3, 6, 6).to(**LAST)
    return Layers(lambda layers, x: layers[2](F.silu(layers[1](layers[0](x)))).flatten(1), *layers), (x,)


STEPS = {
    "normalised": normalised(
        lambda layers, x: layers[2](layers[1](layers[0](x).transpose(1, 2)).transpose(1, 2)), 2, 8
    ),
    "addresses": normalised(
        lambda layers, x: layers[1](layers[0](x).transpose(1, 2)).as_strided((2, 3, 5), (40, 10, 1)).sin(), 2, 8
    ),
    "softmax": normalised(
        lambda layers, x: layers[2](layers[0](x).transpose(1, 2).log_softmax(1).transpose(1, 2)), 2, 8
    ),
    "groups": groups,
}


@pytest.mark.parametrize("kept", [range(99), ()], ids=["all", "none"])
@pytest.mark.parametrize("name", STEPS)
def test_gradients_are_those_of_plain_pytorch(name, kept):
    hardware = store.load(resources.locate("profiles", "cpu-2x2"), Hardware)
    trace = with_roofline(with_implementations(capture(STEPS[name], name)), hardware)
    torch.manual_seed(0)
    plain, (x,) = STEPS[name]()
    planned = apply(copy.deepcopy(plain), plan_with(decisions_keeping(trace, kept)), trace)
    row_by_row = torch.randn(plain(x).shape)
    for tangent in (row_by_row, row_by_row.mT.contiguous().mT, row_by_row[:1].expand(plain(x).shape)):
        for model in (plain, planned):
            model.zero_grad()
            model(x).backward(tangent)
        for a, b in zip(plain.parameters(), planned.parameters(), strict=True):
            assert (a.grad is None) == (b.grad is None)
            if a.grad is not None:
                torch.testing.assert_close(b.grad, a.grad, rtol=1e-4, atol=1e-5)


def test_batch_normalisation_is_laid_out_as_its_kernel_does_it():
    for shape, order in (((2, 3, 5), (0, 2, 1)), ((2, 3, 4, 5), (0, 3, 2, 1)), ((2, 3, 4, 5), (0, 3, 1, 2))):
        norm = (nn.BatchNorm1d if len(shape) == 3 else nn.BatchNorm2d)(shape[-1])

        def function(norm=norm, shape=shape, order=order):
            return norm, (torch.randn(shape).permute(order),)

        trace = capture(function, "norm", "train")
        (output,) = (tensor for tensor in trace.tensors if tensor.role == "output")
        assert output.stride == norm(function()[1][0]).stride()


def test_a_tensor_of_other_strides_is_copied():
    x = torch.randn(2, 3, 1)
    assert exact(x, (3, 1, 99)) is x
    other = exact(x, (1, 2, 1))
    assert other.stride() == (1, 2, 1)
    assert torch.equal(x, other)


STRIDED = {
    "contiguous": lambda: torch.randn(4, 6, requires_grad=True),
    "slice": lambda: torch.randn(4, 12)[:, 1::2],
    "labels": lambda: torch.arange(33 * 8).view(8, 33)[:, 1:],
    "transposed": lambda: torch.randn(6, 4).t(),
    "channels last": lambda: torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last),
    "every second channel": lambda: torch.randn(2, 6, 5, 5).to(memory_format=torch.channels_last)[:, ::2],
    "expanded": lambda: torch.randn(1, 6).expand(4, 6),
    "windows": lambda: torch.randn(9).unfold(0, 6, 1),
    "scalar": lambda: torch.randn(()),
    "empty": lambda: torch.randn(0, 3),
}


@pytest.mark.parametrize("name", STRIDED)
def test_a_copy_has_the_strides_and_values_of_the_tensor_in_memory_of_its_own(name):
    tensor = STRIDED[name]()
    copy = copied(tensor)
    assert (copy.shape, copy.stride(), copy.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
    assert torch.equal(copy, tensor)
    assert copy.data_ptr() != tensor.data_ptr() or not tensor.numel()
    assert not copy.requires_grad


SAME_SHAPE = {
    "contiguous": (lambda x: x.contiguous(), "; try .contiguous()"),
    "slice": (lambda x: torch.stack([x, x], -1).flatten(1)[:, ::2], "; capture and plan again"),
    "part of longer rows": (lambda x: torch.cat([x, x], 1)[:, 1:7], "; capture and plan again"),
    "transposed": (lambda x: x.t().contiguous().t(), "; capture and plan again"),
    "expanded": (lambda x: x[:1].expand(8, 6), "; capture and plan again"),
    "windows": (lambda x: x.flatten()[:13].unfold(0, 6, 1), "; capture and plan again"),
}


class Strided(nn.Module):
    """Calls that read memory by its addresses, and ones that do not."""

    def __init__(self):
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(6, 5)), nn.Parameter(torch.randn(8, 6))

    def forward(self, x):
        y = (x.tanh() * self.scale) @ self.weight
        return y + (x * self.scale).reshape(-1)[:5] + x.contiguous().view(-1)[:5] + x.reshape(-1)[:5]


@pytest.mark.parametrize("kept", [range(99), ()], ids=["all", "none"])
@pytest.mark.parametrize("name", SAME_SHAPE)
def test_inputs_give_the_numbers_of_plain_pytorch_in_the_strides_of_the_capture_and_one_line_in_others(name, kept):
    torch.manual_seed(0)
    plain = Strided()
    inputs = {key: of(torch.randn(8, 6)) for key, (of, _) in SAME_SHAPE.items()}
    captured = capture_model(plain, (inputs[name],), name="strided")
    trace = replace(captured, ops=tuple(replace(op, time_ns=1, implementations=()) for op in captured.ops))
    planned = apply(copy.deepcopy(plain), plan_with(decisions_keeping(trace, kept)), trace)
    for key, x in inputs.items():
        if key != name:
            with pytest.raises(InputError, match=r"found x of strides .* as when the step was captured") as raised:
                planned(x)
            assert str(raised.value).endswith(SAME_SHAPE[name][1])
            continue
        torch.testing.assert_close(planned(x), plain(x), rtol=0, atol=0)
        for model in (plain, planned):
            model(x).square().sum().backward()
        for a, b in zip(plain.parameters(), planned.parameters(), strict=True):
            torch.testing.assert_close(b.grad, a.grad)
    found = verify_capture(ModelStep(plain, (inputs[name],), {}, None), trace)
    assert not found.findings
    assert "2 gradients equal to the last bit" in found.line
