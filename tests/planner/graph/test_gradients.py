"""Gradients come in the order in which they become ready, and are packed into buckets of nearly equal bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from treadle.planner.documents.trace import Costs, Tensor, Trace
from treadle.planner.errors import InputError
from treadle.planner.graph.gradients import buckets_of, finals, handed, ready


def trace_with(sizes: list[int]) -> Trace:
    parameters = [Tensor(id=f"p{i}", role="parameter", name=f"layer{i}.weight") for i in range(len(sizes))]
    gradients = [Tensor(id=f"g{i}", role="gradient", bytes=size, gradient_of=f"p{i}") for i, size in enumerate(sizes)]
    return Trace(
        version=1,
        name="packed",
        mode="train",
        source="hand",
        costs=Costs(model="absent"),
        tensors=(*parameters, *gradients),
        ops=(),
        gradient_order=tuple(gradient.id for gradient in gradients),
    )


def test_parameters_come_as_they_are_ready_and_inputs_after_them() -> None:
    trace = trace_with([4, 4])
    inputs = (Tensor(id="x", role="input"), Tensor(id="dx", role="gradient", gradient_of="x"))
    trace = replace(trace, tensors=(*inputs, *trace.tensors), gradient_order=("g1", "g0"))
    assert [(parameter.name, gradient.id) for parameter, gradient in ready(trace)] == [
        ("layer1.weight", "g1"),
        ("layer0.weight", "g0"),
    ]
    assert handed(trace) == [("p1", "g1"), ("p0", "g0"), ("x", "dx")]
    assert finals(trace) == {"dx": "x", "g0": "p0", "g1": "p1"}


def test_two_buckets_by_hand() -> None:
    first, second = buckets_of(trace_with([4, 4, 8, 16]), 2)
    assert first.parameters == ("layer0.weight", "layer1.weight", "layer2.weight")
    assert first.bytes == second.bytes == 16


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30), st.integers(1, 8))
def test_nothing_is_lost_reordered_or_doubled(sizes: list[int], count: int) -> None:
    buckets = buckets_of(trace_with(sizes), count)
    names = [name for bucket in buckets for name in bucket.parameters]
    assert names == [f"layer{i}.weight" for i in range(len(sizes))]
    assert sum(bucket.bytes for bucket in buckets) == sum(sizes)
    assert len(buckets) <= count
    assert all(bucket.bytes <= sum(sizes) / count + max(sizes) for bucket in buckets)


def test_no_gradients_is_said() -> None:
    with pytest.raises(InputError, match="expected a trace of a training step"):
        buckets_of(trace_with([]), 2)
