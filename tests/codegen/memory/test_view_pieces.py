"""A generated step makes the one piece of a split view that a call reads, not all pieces."""

from __future__ import annotations

import copy
from fractions import Fraction

import torch
from torch import Tensor, nn

from tests.codegen.swap.swap_plans import timed
from tests.planner.plans import memory_plan
from treadle.capture.graph import capture
from treadle.codegen.memory.torch_module import FILE_NAME, generate
from treadle.runtime.memory.apply import apply


class Pieces(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        first, second = y.split([2, 4], -1)
        total = first.sin().sum() + second.cos().sum()
        for row in y.unbind(0):
            total = total + row.exp().sum()
        return total + sum(part.tanh().sum() for part in y.chunk(3, 1))


def test_pieces_are_slices_and_values_stay() -> None:
    model, x = Pieces(), torch.randn(5, 6)
    trace = timed(capture(lambda: (model, (x,)), "pieces"))
    plan = memory_plan(trace, Fraction(1))
    text = generate(plan, trace)[FILE_NAME]
    assert "aten.select.int(" in text
    assert "aten.slice.Tensor(" in text
    assert not any(f"aten.{name}" in text for name in ("unbind", "split", "split_with_sizes"))
    planned = apply(copy.deepcopy(model), plan, trace)
    model(x).backward()
    planned(x).backward()
    for one, two in zip(model.parameters(), planned.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad)
