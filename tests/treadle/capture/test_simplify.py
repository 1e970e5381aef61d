"""Constants that a step makes while it runs become calls, and values that it only reads for speed are not read."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.treadle.capture.replay import replay
from treadle.capture.graph import capture
from treadle.capture.load import build_step
from treadle.planner.errors import InputError

CONSTANTS = {
    "scalar": lambda: torch.tensor(0.5),
    "empty": lambda: torch.tensor([]),
    "uniform": lambda: torch.tensor([[2.0] * 4] * 3),
    "few": lambda: torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "rows": lambda: torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]),
    "whole": lambda: torch.tensor([3, 1, 2, 0]),
    "nan": lambda: torch.tensor([float("nan"), 1.0, float("inf"), 2.0]),
}


class With(nn.Linear):
    """Multiplies by a constant, or puts it in front."""

    def __init__(self, name: str) -> None:
        super().__init__(4, 4)
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        constant = CONSTANTS[self.name]()
        y = super().forward(x)
        return (
            torch.cat([constant, y])
            if not constant.numel()
            else (y * constant.mean(0, dtype=y.dtype)).sum(0) + constant
        )


@pytest.mark.parametrize("name", CONSTANTS)
def test_small_constants_are_calls(name: str) -> None:
    def make() -> tuple[nn.Module, tuple[Tensor, ...]]:
        return With(name), (torch.randn(2, 4),)

    step, trace = build_step(make, name), capture(make, name)
    torch.testing.assert_close(replay(trace, step)[trace.outputs[0]], step.run().detach(), equal_nan=True)


def test_large_constants_are_refused() -> None:
    class Large(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * torch.tensor([float(value) for value in range(400)]).reshape(100, 4)[0]

    with pytest.raises(InputError, match="makes a constant tensor while it runs; make it a buffer"):
        capture(lambda: (Large(4, 4), (torch.randn(2, 4),)), "large")


class Masked(nn.Linear):
    """Leaves out the mask where it masks nothing, but not where it is compiled, as models of Transformers do."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = super().forward(x)
        return y if not torch.compiler.is_compiling() and bool(mask.all()) else y.masked_fill(~mask, 0.0)


def test_a_model_that_reads_a_mask_is_traced_as_where_it_is_compiled() -> None:
    def make() -> tuple[nn.Module, tuple[Tensor, ...]]:
        return Masked(4, 4), (torch.randn(2, 4), torch.ones(2, 4, dtype=torch.bool))

    trace = capture(make, "masked")
    assert any(op.target.startswith("aten.masked_fill") or "where" in op.target for op in trace.ops)
    model, (x, _) = make()
    step = build_step(lambda: (model, (x, torch.tensor([[True, False] * 2] * 2))), "masked")
    assert torch.equal(replay(trace, step)[trace.outputs[0]], step.run())
    assert not torch.compiler.is_compiling()
