"""On captured steps of small networks every implementation makes what its op makes, and the step stays what it was."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from treadle.capture.costs.counting import dtype_of, is_view  # noqa: E402
from treadle.capture.graph import capture  # noqa: E402
from treadle.capture.operator_calls import call  # noqa: E402
from treadle.planner.documents.trace import Op, Trace  # noqa: E402
from treadle.planner.graph.implementations import with_implementations  # noqa: E402

EXACT = ("relu", "hardtanh", "add", "threshold", "dropout", "max_pool", "sigmoid", "tanh")
"""Ops whose implementations make the same bits."""


class Mixed(nn.Module):
    """What the examples do not have in one place: clamps, large kernels, groups, transposed convolution, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Conv2d(3, 4, 5, padding=2, bias=False)
        self.norm, self.bare = nn.BatchNorm2d(4), nn.BatchNorm2d(4, track_running_stats=False)
        self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.grow = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.line = nn.Conv1d(4, 4, 3)
        self.norm2 = nn.LayerNorm(62)

    def forward(self, x: Tensor) -> Tensor:
        h = self.bare(F.relu6(self.norm(self.large(x))))
        h = F.dropout(F.relu(self.depthwise(h) + h), 0.25)
        h = F.max_pool2d(self.grow(h), 3, 2, 1)
        return self.norm2(torch.tanh(self.line(h.flatten(2)))).square().mean()


def mixed() -> tuple[nn.Module, tuple[Tensor, ...], None]:
    return Mixed(), (torch.randn(2, 3, 8, 8),), None


def example(name: str) -> Callable[[], Any]:
    return importlib.import_module(f"examples.models.{name}").tiny


def leaves(trace: Trace) -> dict[str, Tensor]:
    made = {name for op in trace.ops for name in op.outputs}
    values = {}
    for tensor in trace.tensors:
        if tensor.id in made or tensor.role not in ("parameter", "buffer", "input", "tangent"):
            continue
        dtype = dtype_of(tensor)
        drawn = (
            torch.randn(tensor.shape, dtype=dtype)
            if dtype.is_floating_point
            else torch.zeros(tensor.shape, dtype=dtype)
        )
        values[tensor.id] = 1 + drawn / 10 if len(tensor.shape or ()) < 2 and dtype.is_floating_point else drawn
    return values


def evaluated(trace: Trace, inspect: Callable[[Op, dict[str, Any]], None] = lambda op, values: None) -> dict[str, Any]:
    torch.manual_seed(0)
    values: dict[str, Any] = dict(leaves(trace))
    for op in trace.ops:
        values.update(zip(op.outputs, call(op, values), strict=True))
        inspect(op, values)
    return values


@pytest.mark.parametrize(
    ("function", "kinds"),
    [
        (mixed, {"conv": 9, "out": 4, "int": 3, "rng": 1, "inplace": 4, "statistics": 2}),
        (example("resnet50"), {"conv": 50, "out": 15, "int": 14, "inplace": 17, "statistics": 15}),
        (example("gpt2"), {"out": 5, "inplace": 5, "grad-inplace": 5}),
    ],
    ids=["mixed", "resnet50", "gpt2"],
)
def test_every_implementation_makes_what_its_op_makes(function, kinds):
    torch.manual_seed(1)
    trace = capture(function, "step")
    tensors = {tensor.id: tensor for tensor in trace.tensors}
    new = with_implementations(trace, to_measure=True)
    found: Counter[str] = Counter()

    def compare(op: Op, values: dict[str, Any]) -> None:
        if is_view(op, {**tensors, **{tensor.id: tensor for tensor in new.tensors}}):
            return
        for way in op.implementations:
            found[way.family] += 1
            given = {name: values[name] for name in way.inputs}
            if way.overwrites is not None:
                given[way.overwrites] = given[way.overwrites].clone()
            results = call(way, given)
            for name, result in zip(way.outputs, results, strict=True):
                if name is None:
                    continue
                assert result.stride() == values[name].stride(), (op.id, way.name)
                if any(word in op.target for word in EXACT):
                    assert torch.equal(result, values[name]), (op.id, way.name)
                scale = float(values[name].abs().max())
                assert torch.allclose(result, values[name], rtol=1e-3, atol=1e-4 * scale), (op.id, way.name)
            if way.overwrites is not None:
                assert results[0].data_ptr() == given[way.overwrites].data_ptr(), (op.id, way.name)

    before, after = evaluated(trace), evaluated(new, compare)
    for tensor in trace.tensors:
        if tensor.gradient_of is not None or tensor.role == "output":
            assert torch.equal(before[tensor.id], after[tensor.id]), tensor.id
    assert {family: found[family] for family in kinds} == kinds
