"""The added updates, replayed, leave the weights that PyTorch's optimizers leave."""

from __future__ import annotations

import pytest
import torch

from examples.models import gpt2, resnet50
from treadle.capture.costs import with_counts
from treadle.capture.graph import capture
from treadle.capture.load import build_step
from treadle.capture.operator_calls import call
from treadle.capture.optimizer import with_optimizer
from treadle.planner.documents import store
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.graph.liveness import sweep


@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize("function", [gpt2.tiny, resnet50.tiny])
def test_two_updates_equal_pytorch(name: str, function: object) -> None:
    trace = with_optimizer(capture(function, "model"), name)  # type: ignore[arg-type]
    tensors = {tensor.id: tensor for tensor in trace.tensors}
    torch.manual_seed(2)
    step = build_step(function, "model")  # type: ignore[arg-type]
    named = dict(step.model.named_parameters())
    values = {t.id: named[t.name].detach().clone() for t in trace.tensors if t.role == "parameter"}
    states = [t for t in trace.tensors if t.role == "buffer" and t.name.startswith("optimizer.")]
    values |= {state.id: torch.zeros(state.shape) for state in states}

    make = torch.optim.SGD if name == "sgd" else torch.optim.Adam
    optimizer = make(step.model.parameters(), lr=1e-3, fused=True)
    for _ in range(2):
        optimizer.zero_grad()
        step.loss(step.model, *step.inputs).backward()
        for key in trace.gradient_order:
            values[key] = named[tensors[tensors[key].gradient_of].name].grad.clone()
        optimizer.step()
        for op in trace.ops:
            if op.phase == "optimizer":
                assert call(op, values) == []
    for key, tensor in tensors.items():
        if tensor.role == "parameter":
            assert torch.equal(values[key], named[tensor.name]), tensor.name


def test_adam_doubles_the_parameters_and_the_document_is_sound() -> None:
    plain = capture(gpt2.tiny, "gpt2")
    trace = with_counts(with_optimizer(plain, "adam"))
    assert store.loads(store.dumps(trace), "here", Trace) == trace
    weights = sum(tensor.bytes for tensor in plain.tensors if tensor.role == "parameter")
    count = len(plain.gradient_order)
    assert sweep(trace).resident == sweep(plain).resident + 2 * weights + 4 * count
    updates = [op for op in trace.ops if op.target == "aten._fused_adam_.default"]
    assert [op.inputs[1] for op in updates] == list(plain.gradient_order)
    moved = sum(op.bytes_moved for op in updates)
    assert moved == 7 * weights + 4 * count  # reads weight, gradient, moments and step; writes weight and moments


def test_a_trace_without_gradients_is_refused() -> None:
    with pytest.raises(InputError, match="no gradients"):
        with_optimizer(capture(gpt2.tiny, "gpt2", "infer"), "sgd")
