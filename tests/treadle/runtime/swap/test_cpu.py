"""Swap plans in real threads: the same bits as without a limit on memory, and never a hang."""

from __future__ import annotations

import dataclasses
import gc
import threading
import weakref

import pytest
import torch

from tests.treadle.runtime.swap.steps import STEPS, Free, batch, differing, model_of, plan_of, step_of
from treadle.capture.load import build_step
from treadle.planner.errors import CheckFailed, InputError
from treadle.runtime.swap.emulation import Emulation
from treadle.runtime.swap.step import StepNode, SwapStep
from treadle.runtime.swap.swapped import SwappedStep


def swapped(name: str, step: SwapStep, *, poison: bool = True, timeout: float = 60.0) -> SwappedStep:
    return SwappedStep(model_of(name), step, "cpu", poison=poison, timeout=timeout)


@pytest.mark.parametrize(
    ("name", "optimizer", "shuffled"),
    [
        ("tiny", "adam", False),
        ("gpt2_dropout", "adam", True),
        ("convnet", "sgd", True),
        ("lstm", "sgd", False),
        ("moe", "adam", False),
        ("resnet", "sgd", False),
    ],
)
def test_three_iterations_leave_the_bits_that_they_leave_without_a_limit(name, optimizer, shuffled):
    """Buffers that change, random numbers, and places overwritten as soon as they are given up."""
    step = step_of(name, optimizer, shuffled=shuffled)
    assert plan_of(name, optimizer, shuffled=shuffled).decisions.out_bytes > 0
    assert differing(swapped(name, step), Free(name, step)) == []


@pytest.mark.parametrize(("name", "optimizer"), [("gpt2", "adam"), ("tiny", "sgd")])
def test_training_equals_plain_pytorch(name, optimizer):
    ours = swapped(name, step_of(name, optimizer))
    torch.manual_seed(0)
    plain = build_step(STEPS[name], name)
    make = torch.optim.SGD if optimizer == "sgd" else torch.optim.Adam
    theirs = make(plain.model.parameters(), lr=1e-3, fused=True)
    for seed in range(3):
        inputs = batch(name, seed)
        torch.manual_seed(seed)
        loss = ours(*inputs)
        torch.manual_seed(seed)
        expected = plain.loss(plain.model, *inputs)
        theirs.zero_grad()
        expected.backward()
        theirs.step()
        assert torch.equal(loss, expected.detach())
    mine = ours.model.state_dict()
    assert all(torch.equal(mine[key], value) for key, value in plain.model.state_dict().items())


def test_residents_that_end_elsewhere_are_found_there():
    """Objects of a class change their roles, so the second iteration runs on other bytes than the first."""
    step = step_of("gpt2_dropout", "adam", shuffled=True)
    assert step.initial != step.final
    ours = swapped("gpt2_dropout", step)
    before = dict(ours.memory.objects)
    ours(*batch("gpt2_dropout", 0))
    assert ours.memory.objects != before
    assert sorted(ours.memory.objects.values()) == sorted(before.values())


def test_inference_and_gradients_without_an_optimizer():
    step = step_of("outputs", None, "infer", extra=0)
    free = Free("outputs", step)
    free.model.eval()
    ours = swapped("outputs", step)
    ours.model.eval()
    assert differing(ours, free) == []
    step = step_of("tiny", None)
    ours = swapped("tiny", step)
    assert differing(ours, Free("tiny", step), 2) == []
    assert all(parameter.grad is not None for parameter in ours.model.parameters())


def changed(step: SwapStep, place: int, node: StepNode) -> SwapStep:
    return dataclasses.replace(step, nodes=[*step.nodes[:place], node, *step.nodes[place + 1 :]])


def test_a_place_that_is_given_up_too_early_shows_only_because_of_poison():
    step = step_of("tiny", "sgd")
    calls = step.calls(torch.device("cpu"))
    end, storage = next(
        (place, node.ends[0])
        for place, node in enumerate(step.nodes)
        if node.ends and str(step.storages[node.ends[0]].dtype) == "torch.float32" and node.ends[0] not in node.at
    )
    early = max(
        place
        for place, node in enumerate(step.nodes[:end])
        if node.kind == "compute" and (storage in node.at or f"T('{storage}')" in repr(calls[node.item].args))
    )
    nodes = [node._replace(ends=tuple(x for x in node.ends if x != storage)) for node in step.nodes]
    nodes[early] = nodes[early]._replace(ends=(*nodes[early].ends, storage))
    # the tables themselves say so already
    broken = dataclasses.replace(step, nodes=nodes)
    with pytest.raises(InputError, match=f"which reads '{storage}'; it is not on the device then"):
        swapped("tiny", broken)
    ours = swapped("tiny", step)
    places = ours.memory.places
    ending = list(places.ending)
    address = ending[end].pop(storage)
    ending[early] = {**ending[early], storage: address}
    ours.memory.places = dataclasses.replace(places, ending=tuple(ending))
    assert differing(ours, Free("tiny", step), 1)
    ours = swapped("tiny", step, poison=False)
    assert differing(ours, Free("tiny", step), 1) == []


def test_a_wait_that_is_missing_shows_where_copies_are_slow():
    """A matrix product that does not wait for the copy in of its weight reads what lay there before."""
    step = step_of("tiny", "sgd", extra=0)
    arrivals = {place: node.item for place, node in enumerate(step.nodes) if node.kind == "in" and node.after}
    place, node = next(
        (place, node)
        for place, node in enumerate(step.nodes)
        if node.item.startswith("addmm")
        and any(arrivals.get(before) in step.parameters.values() for before in node.after)
    )
    hasty = changed(step, place, node._replace(after=tuple(x for x in node.after if x not in arrivals)))
    for each, equal in ((step, True), (hasty, False)):
        ours = swapped("tiny", each)
        quick = dict.fromkeys(each.calls(torch.device("cpu")), 0)
        slow = Emulation(each.machine, quick, 2000.0)
        ours.runner.emulation = slow
        assert (differing(ours, Free("tiny", step), 1) == []) is equal


@pytest.mark.parametrize("name", ["tiny", "convnet", "gpt2_dropout"])
def test_copies_run_while_their_tensor_is_read(name):
    step = step_of(name, "adam", extra=0, early=True)
    early = [number for number, node in enumerate(step.nodes) if node.early]
    assert len(early) > 3
    assert "early=True" in step.text
    assert differing(swapped(name, step), Free(name, step)) == []


def test_a_drop_that_does_not_wait_for_its_early_copy_loses_the_value():
    step = step_of("tiny", "sgd", extra=0, early=True)
    free = Free("tiny", step)
    for each, equal in ((step, True), (without_waits(step), False)):
        ours = swapped("tiny", each)
        ours.runner.emulation = Emulation(each.machine, dict.fromkeys(each.calls(torch.device("cpu")), 0), 2000.0)
        assert (differing(ours, free if equal else Free("tiny", step), 1) == []) is equal


def without_waits(step: SwapStep) -> SwapStep:
    early = {number for number, node in enumerate(step.nodes) if node.early}
    nodes = [
        node._replace(after=tuple(x for x in node.after if x not in early)) if node.kind == "drop" else node
        for node in step.nodes
    ]
    return dataclasses.replace(step, nodes=nodes)


def test_an_operator_that_raises_is_named_and_the_step_is_over():
    ours = swapped("gpt2", step_of("gpt2", "adam"))
    tokens, targets = batch("gpt2", 0)
    with pytest.raises(InputError, match=r"gpt2: operator 'embedding' raised IndexError: index out of range"):
        ours(tokens + 10**6, targets)
    with pytest.raises(InputError, match="an earlier iteration failed, and values are lost; make the step again"):
        ours(tokens, targets)
    ours.synchronize()


def test_calls_that_the_plan_does_not_cover_are_refused_before_anything_runs():
    ours = swapped("tiny", step_of("tiny", "sgd"))
    x, labels = batch("tiny", 0)
    with pytest.raises(InputError, match=r"tiny: found x of float32 \[4, 6\], expected float32 \[8, 6\]"):
        ours(x[:4], labels[:4])
    with pytest.raises(InputError, match="tiny: found 1 inputs, expected 2"):
        ours(x)
    ours.model.eval()
    with pytest.raises(InputError, match="tiny: found evaluation mode, expected training mode"):
        ours(x, labels)
    ours.model.train()
    assert ours(x, labels).isfinite()
    with pytest.raises(InputError, match="found parameter 'bias', which the plan does not know"):
        SwappedStep(torch.nn.Linear(2, 2), step_of("tiny", "sgd"), "cpu")


def test_streams_that_wait_for_each_other_end():
    step = step_of("tiny", "sgd")
    place, node = next((p, n) for p, n in enumerate(step.nodes) if n.kind == "in")
    last = max(p for p, n in enumerate(step.nodes) if n.kind == "compute")
    ours = swapped("tiny", changed(step, place, node._replace(after=(last,))))
    with pytest.raises(CheckFailed, match=r"tiny: the streams wait for each other: .*'in' for node \d+ \(operator"):
        ours(*batch("tiny", 0))


def test_an_iteration_that_takes_too_long_is_given_up():
    step = step_of("tiny", "sgd")
    ours = swapped("tiny", step, timeout=0.2)
    ours.runner.emulation = Emulation(step.machine, dict.fromkeys(step.calls(torch.device("cpu")), 10**9), 3.0)
    with pytest.raises(CheckFailed, match=r"tiny: not done after 0.2 s; .*'compute' runs a node"):
        ours(*batch("tiny", 0))


def test_a_thread_that_has_ended_is_noticed():
    ours = swapped("tiny", step_of("tiny", "sgd"))
    ours.runner.queues["out"].put(None)
    with pytest.raises(CheckFailed, match="tiny: a thread of the step ended in its midst"):
        ours(*batch("tiny", 0))


def test_threads_end_with_the_step():
    ours = swapped("tiny", step_of("tiny", "sgd"))
    ours(*batch("tiny", 0))
    threads, gone = list(ours.runner.threads), weakref.ref(ours)
    del ours
    gc.collect()
    assert gone() is None
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    assert threading.active_count() < 100
