"""Gradients are packed in the order they become ready, into buckets of nearly equal bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.job.buckets import buckets_of
from treadle.planner.documents.trace import Costs, Tensor, Trace
from treadle.planner.errors import InputError


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
