"""A captured step calls the operators that plain PyTorch runs, not the smaller ones that they are composed of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tests.torch_versions import COMPOSES_SILU
from tests.treadle.capture.replay import replay
from treadle.capture.graph import capture
from treadle.capture.load import ModelStep
from treadle.capture.whole import _effect, whole_operators, without_checks

IMAGE, LINE, BOX, ROWS, MATRIX = (2, 4, 8, 8), (2, 4, 8), (2, 4, 4, 4, 4), (3, 8), (5, 5)


def definite(x: Tensor) -> Tensor:
    return x @ x.mT + torch.ones(5).diag()


def resized(mode: str, **settings: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: F.interpolate(x, scale_factor=2, mode=mode, **settings)


CALLS: dict[tuple[int, ...], tuple[Callable[[Tensor], Tensor], ...]] = {
    IMAGE: (
        *(resized(mode) for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area")),
        resized("bilinear", align_corners=True),
        resized("bicubic", antialias=True),
        lambda x: F.pixel_shuffle(x, 2),
        lambda x: F.adaptive_avg_pool2d(x, 3),
        lambda x: F.group_norm(x, 2),
        lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
        lambda x: x @ x[0, 0],
        F.hardshrink,
        F.softshrink,
        F.gelu,
        *(() if COMPOSES_SILU else (F.silu,)),
    ),
    LINE: (resized("nearest"), resized("linear")),
    BOX: (resized("nearest"), resized("trilinear")),
    ROWS: (
        lambda x: F.cross_entropy(x, torch.arange(3)),
        lambda x: F.multi_margin_loss(x, torch.arange(3)),
        lambda x: F.multilabel_margin_loss(x, torch.zeros(3, 8, dtype=torch.long)),
    ),
    MATRIX: (
        lambda x: torch.linalg.inv(definite(x)),
        lambda x: torch.linalg.cholesky(definite(x)),
        lambda x: torch.linalg.solve(definite(x), x),
    ),
}
UNSEEN = {"detach", "alias", "arange", "zeros", "ones_like", "view", "_unsafe_view", "clone", "lift_fresh", "select",
          "_linalg_check_errors", "ones", "diag_embed"}  # fmt: skip
"""Views and copies, of which a captured step makes fewer, checks, and operators that make inputs here."""


class Each(nn.Module):
    """The sum of the results of several functions, so that one step holds them all."""

    def __init__(self, *functions: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.functions, self.weight = functions, nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([function(x * self.weight).sum() for function in self.functions]).sum()


class Log(TorchDispatchMode):
    """Counts the operators below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(function).split(".")[1]] += 1
        return function(*args, **(kwargs or {}))


def test_a_captured_step_calls_what_plain_pytorch_runs() -> None:
    for shape, functions in CALLS.items():
        model, x = Each(*functions), torch.randn(shape)
        with Log() as plain:
            model(x).backward()
        trace = capture(lambda model=model, x=x: (model, (x,)), "step")
        captured = Counter(op.target.split(".")[1] for op in trace.ops)
        for counts in (plain.counts, captured):
            for name in UNSEEN:
                counts.pop(name, None)
        assert captured == plain.counts, shape


def test_linear_algebra_is_captured_as_it_runs() -> None:
    """Values and gradients of plain PyTorch; a singular matrix, which it refuses, makes inf instead."""
    step = ModelStep(Each(*CALLS[MATRIX]), (torch.randn(MATRIX),), {}, None)
    trace = capture(lambda: (step.model, step.args), "step")
    values = replay(trace, step)
    result = step.model(*step.inputs)
    result.backward()
    assert torch.equal(values[trace.outputs[0]], result)
    assert torch.equal(values[trace.gradient_order[0]], step.model.weight.grad)
    singular = ModelStep(Each(torch.linalg.inv), (torch.zeros(MATRIX),), {}, None)
    with pytest.raises(torch.linalg.LinAlgError):
        singular.model(*singular.inputs)
    trace = capture(lambda: (singular.model, singular.args), "step")
    assert not torch.isfinite(replay(trace, singular)[trace.outputs[0]])


def test_what_is_hidden_comes_back() -> None:
    overload = torch.ops.aten.upsample_bilinear2d.vec
    before = dict(overload.py_kernels)
    with whole_operators():
        assert overload.py_kernels != before
    assert overload.py_kernels == before
    check = torch.ops.aten._linalg_check_errors.default
    effect = _effect(check)
    with without_checks():
        assert _effect(check) is None
    assert _effect(check) == effect
    assert effect is not None or not hasattr(torch.compiler, "_compile_session_context")  # older versions have none
