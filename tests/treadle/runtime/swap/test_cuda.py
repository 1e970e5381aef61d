"""Swap plans on a GPU, with a stand-in for its streams and events; and for real where there is a GPU."""

from __future__ import annotations

import pytest
import torch

from tests.treadle.runtime.swap.fake_cuda import Api
from tests.treadle.runtime.swap.steps import Free, batch, differing, model_of, step_of
from treadle.planner.errors import InputError, MissingBackendError
from treadle.runtime.swap.cuda import waits_of
from treadle.runtime.swap.step import SwapStep, compute, copy_in, copy_out, drop
from treadle.runtime.swap.swapped import SwappedStep


def swapped(name: str, step: SwapStep, api: Api, *, poison: bool = True) -> SwappedStep:
    return SwappedStep(model_of(name), step, "cuda", poison=poison, api=api, device=torch.device("cpu"))


@pytest.mark.parametrize("poison", [True, False])
def test_issued_in_order_it_leaves_the_same_bits(poison):
    step = step_of("tiny", "adam", extra=0)
    assert any(node.kind == "drop" for node in step.nodes)
    assert differing(swapped("tiny", step, Api(), poison=poison), Free("tiny", step)) == []


@pytest.mark.parametrize("poison", [True, False])
def test_copies_issued_while_their_tensor_is_read_leave_the_same_bits(poison):
    step = step_of("gpt2_dropout", "adam", extra=0, early=True)
    assert any(node.early for node in step.nodes)
    assert differing(swapped("gpt2_dropout", step, Api(), poison=poison), Free("gpt2_dropout", step)) == []


@pytest.mark.parametrize("poison", [True, False])
def test_every_node_starts_after_all_that_it_waits_for(poison):
    """Through events and the order of its stream alone; the host waits once, at the end."""
    step = step_of("gpt2_dropout", "adam")
    api = Api()
    ours = swapped("gpt2_dropout", step, api, poison=poison)
    for iteration in range(2):
        api.issued.clear()
        ours(*batch("gpt2_dropout", iteration))
        assert api.synchronized == iteration + 1
        issued = iter(range(len(api.issued)))
        works: dict[int, set[int]] = {}  # by node: the work that it stands for
        for number, node in enumerate(step.nodes):
            before = set[int]().union(*(works[other] for other in node.after))
            if node.kind == "drop" and not poison:
                works[number] = before
                continue
            here = next(issued)
            assert before <= api.issued[here][1], node
            works[number] = {here}
        assert next(issued, None) is None
        assert len({id(stream) for stream, _ in api.issued}) == 3


def test_events_only_where_another_stream_waits_for_the_first_time():
    nodes = [
        copy_in("a", 0),
        copy_in("b", 8),
        compute("x", {"c": 16}, after=[0, 1]),
        compute("y", {"d": 24}, after=[1, 2]),
        drop("a", after=[2]),
        copy_in("e", 0, after=[4]),
        copy_out("c", after=[3]),
        compute("z", {"f": 16}, after=[3, 5, 6]),
    ]
    assert waits_of(nodes) == [[], [], [1], [], [], [2], [3], [5, 6]]
    assert waits_of(nodes, keep_drops=True) == [[], [], [1], [], [2], [4], [3], [5, 6]]


def test_times_of_nodes_and_counts_of_the_allocator():
    step = step_of("tiny", "adam", extra=0)
    api = Api()
    ours = swapped("tiny", step, api, poison=False)
    ours.run(*batch("tiny", 0), timed=True)
    ran = [place for place, node in enumerate(step.nodes) if node.kind != "drop"]
    assert all(ours.spans.start[place] < ours.spans.end[place] for place in ran)
    before = ours.runner.counters()
    api.reserved += 5
    assert {key: ours.runner.counters()[key] - count for key, count in before.items() if count} == {
        "reserved_bytes.all.current": 5
    }


def test_an_operator_that_raises_is_named():
    ours = swapped("gpt2", step_of("gpt2", "sgd"), Api())
    tokens, targets = batch("gpt2", 0)
    with pytest.raises(InputError, match="gpt2: operator 'embedding' raised IndexError"):
        ours(tokens + 10**6, targets)
    with pytest.raises(InputError, match="an earlier iteration failed"):
        ours(tokens, targets)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_backend_is_missing():
    with pytest.raises(MissingBackendError, match="no CUDA device that PyTorch can use; run with backend cpu"):
        SwappedStep(model_of("tiny"), step_of("tiny", "sgd"), "cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_three_iterations_leave_the_same_bits_and_allocate_nothing():
    step = step_of("tiny", "adam")
    ours = SwappedStep(model_of("tiny"), step, "cuda", poison=True)
    losses = [float(ours(*batch("tiny", seed))) for seed in range(2)]
    before = ours.runner.counters()
    losses += [float(ours(*batch("tiny", seed))) for seed in range(2, 4)]
    assert ours.runner.counters() == before
    again = SwappedStep(model_of("tiny"), step, "cuda")
    assert len(losses) == 4
    assert all(x == x for x in losses)
    assert again.device.type == "cuda"
