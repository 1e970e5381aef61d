"""Targets of a trace: operators of PyTorch and kernels of treadle."""

from __future__ import annotations

import pytest
import torch

from treadle import kernels
from treadle.capture.operator_calls import call, operator
from treadle.planner.documents.trace import Op
from treadle.planner.errors import InputError


def test_a_target_is_an_operator_or_a_kernel() -> None:
    assert operator("aten.relu.default") is torch.ops.aten.relu.default
    assert operator("treadle.relu_mask") is kernels.relu_mask
    for name in kernels.__all__:
        assert callable(operator(f"treadle.{name}"))


@pytest.mark.parametrize("target", ["aten.nothing.default", "aten.relu", "treadle", "relu"])
def test_unknown_operators_are_refused(target: str) -> None:
    with pytest.raises(InputError, match="expected one"):
        operator(target)


@pytest.mark.parametrize("name", ["nothing", "bits", "torch", "__doc__", "relu_mask.x"])
def test_unknown_kernels_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="expected one of treadle"):
        operator(f"treadle.{name}")


def test_kernels_are_called_with_the_recorded_arguments() -> None:
    x = torch.randn(1, 2, 6, 6)
    op = Op(
        id="pool",
        target="treadle.max_pool2d",
        phase="forward",
        inputs=("x",),
        outputs=("y",),
        args=({"tensor": "x"}, [2, 2], [2, 2], [0, 0], [1, 1], False),
    )
    (y,) = call(op, {"x": x})
    assert y is not None
    assert torch.equal(y, torch.nn.functional.max_pool2d(x, 2))
