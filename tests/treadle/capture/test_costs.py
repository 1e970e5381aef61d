"""Counted work against hand calculation and PyTorch's own counter; modelled and measured times."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from examples.models import gpt2, moe, resnet50, unet
from treadle.capture import costs
from treadle.capture.costs import measuring
from treadle.capture.graph import capture
from treadle.capture.load import build_step
from treadle.planner.documents.hardware import Device, Hardware
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError


@cache
def counted(name: str) -> Trace:
    functions = {"resnet50": resnet50.tiny, "unet": unet.tiny, "gpt2": gpt2.tiny, "moe": moe.tiny}
    return costs.with_counts(capture(functions[name], name))


def one(trace: Trace, target: str) -> Any:
    (op,) = [op for op in trace.ops if op.target == target]
    return op


def linear_step() -> Any:
    return nn.Linear(256, 128, bias=False), (torch.randn(64, 256, requires_grad=True),)


def test_linear_by_hand() -> None:
    trace = costs.with_counts(capture(linear_step, "linear"))
    forward, *backward = [op for op in trace.ops if op.target == "aten.mm.default"]
    assert forward.flops == 2 * 64 * 256 * 128
    assert forward.bytes_moved == 4 * (64 * 256 + 256 * 128 + 64 * 128)
    assert sum(op.flops for op in backward) == 2 * forward.flops
    for op in trace.ops:
        if op.target == "aten.t.default":
            assert (op.flops, op.bytes_moved) == (0, 0)


@pytest.mark.parametrize("name", ["resnet50", "unet", "moe"])
def test_flops_are_those_of_pytorch_itself(name: str) -> None:
    step = build_step({"resnet50": resnet50.tiny, "unet": unet.tiny, "moe": moe.tiny}[name], name)
    with FlopCounterMode(display=False) as counter:
        step.loss(step.model, *step.inputs).backward()
    assert sum(op.flops or 0 for op in counted(name).ops) == counter.get_total_flops()


def test_attention_on_the_cpu_is_counted() -> None:
    """Two products of [tokens, tokens] by the head width forward, five in the backward pass (one recomputed)."""
    forward = [op for op in counted("gpt2").ops if op.target.endswith("flash_attention_for_cpu.default")]
    backward = [op for op in counted("gpt2").ops if op.target.endswith("flash_attention_for_cpu_backward.default")]
    product = 2 * 2 * 4 * 32 * 32 * 16
    assert [op.flops for op in forward] == [2 * product] * 2
    assert [op.flops for op in backward] == [5 * product] * 2


def test_lookups_read_what_they_return_and_expanded_tensors_are_small() -> None:
    lookup = next(op for op in counted("gpt2").ops if op.target == "aten.embedding.default")
    assert lookup.bytes_moved == 2 * (2 * 32 * 64 * 4) + 2 * 32 * 8
    division = one(counted("resnet50"), "aten.div.Scalar")  # gradient of the mean, of an expanded tensor
    assert division.bytes_moved == 4 * (4 * 64 + 4 * 64 * 4 * 4)


def toy(**fields: Any) -> Hardware:
    device = Device(model="toy", kind="gpu", count=1, **fields)
    return Hardware(version=1, name="toy", nodes=1, devices=(Device(model="host", kind="cpu", count=1), device))


def test_roofline_takes_the_larger_bound_plus_the_launch() -> None:
    trace = capture(linear_step, "linear")
    work, moved = 2 * 64 * 256 * 128, 4 * (64 * 256 + 256 * 128 + 64 * 128)
    for peak, bandwidth, expected in ((1e9, 1e12, work), (1e15, 1e9, moved)):
        timed = costs.with_roofline(trace, toy(peak_flops={"float32": peak}, memory_bandwidth=bandwidth, launch_us=3))
        forward = next(op for op in timed.ops if op.target == "aten.mm.default")
        assert forward.time_ns == expected + 3000
        assert {op.time_ns for op in timed.ops if op.target == "aten.t.default"} == {0}
        assert timed.costs.model == "roofline"
        assert timed.costs.device == "toy"


class IntegerProduct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (self.layer(x) * (k @ k).sum()).mean()


def test_a_product_of_integers_takes_the_time_of_its_bytes() -> None:
    step = IntegerProduct(), (torch.randn(2, 4), torch.ones(8, 8, dtype=torch.int64))
    timed = costs.with_roofline(
        capture(lambda: step, "integers"), toy(peak_flops={"float32": 1.0}, memory_bandwidth=1e9, launch_us=3)
    )
    product = next(op for op in timed.ops if op.target == "aten.mm.default" and "input_1" in op.inputs)
    assert product.flops == 2 * 8**3
    assert product.time_ns == product.bytes_moved + 3000


def test_double_precision_has_half_the_rate_of_single_where_the_profile_has_none() -> None:
    def step() -> Any:
        return nn.Linear(64, 64).double(), (torch.randn(32, 64, dtype=torch.float64),)

    trace = capture(step, "double")
    for rates, rate in (({"float32": 4e9}, 2e9), ({"float32": 4e9, "float64": 1e9}, 1e9)):
        timed = costs.with_roofline(trace, toy(peak_flops=rates, memory_bandwidth=1e15))
        assert one(timed, "aten.addmm.default").time_ns == round(2 * 32 * 64 * 64 / rate * 1e9)


@pytest.mark.parametrize(
    ("fields", "path"),
    [({"peak_flops": {"float32": 1e12}}, "memory_bandwidth"), ({"memory_bandwidth": 1e9}, "peak_flops")],
)
def test_a_profile_without_the_needed_rate_is_named(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(InputError) as caught:
        costs.with_roofline(capture(linear_step, "linear"), toy(**fields))
    assert str(caught.value).startswith(f"toy: $.devices[1].{path}: found ")


@pytest.mark.parametrize("name", ["resnet50", "gpt2", "moe"])
def test_every_op_is_measured_once_per_signature(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "ENOUGH_SECONDS", 0.0)
    calls: list[str] = []
    real = measuring._measure
    monkeypatch.setattr(measuring, "_measure", lambda op, *rest: calls.append(op.id) or real(op, *rest))
    before = torch.random.get_rng_state()
    timed = costs.with_measured(counted(name))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert timed.costs.model == "measured"
    assert all(op.time_ns is not None and op.time_ns > 0 for op in timed.ops)
    assert len(calls) < len(timed.ops)


def test_measured_time_follows_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def products() -> Any:
        return nn.Sequential(nn.Linear(16, 1024, bias=False), nn.Linear(1024, 1024, bias=False)), (
            torch.randn(512, 16),
        )

    timed = costs.with_measured(capture(products, "products", "infer"))
    small, large = (op.time_ns for op in timed.ops if op.target == "aten.mm.default")
    assert large > 3 * small  # 64 times the work
