"""The model of synthetic gradients: names, order and values."""

from __future__ import annotations

import torch
from msgspec.structs import replace

from tests.codegen.compression.compression_plans import small_problem
from treadle.planner.passes.compression.problem import Gradient
from treadle.runtime.compression.synthetic import Sleeper, SyntheticModel, random_gradients


def test_gradients_come_in_their_order_with_their_values() -> None:
    names = ("head.weight", "body.1.weight", "body.1.bias", "scale")
    gradients = tuple(Gradient(name=name, elements=at + 2, backward_ns=10) for at, name in enumerate(names))
    problem = replace(small_problem(), gradients=gradients)
    values = random_gradients(problem, 3, whole=True)
    model, came = SyntheticModel(problem, values), []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: came.append(name))
    model().backward()
    assert tuple(came) == names
    for name, expected in zip(names, values, strict=True):
        found = model.get_parameter(name).grad
        assert found is not None
        assert torch.equal(found, expected)


def test_whole_gradients_are_whole_and_differ_between_ranks() -> None:
    problem = small_problem()
    one, other = (random_gradients(problem, rank, whole=True)[0] for rank in (0, 1))
    assert torch.equal(one, one.round())
    assert not torch.equal(one, other)
    assert torch.equal(random_gradients(problem, 1, whole=False)[1], random_gradients(problem, 1, whole=False)[1])


def test_what_a_sleep_takes_too_long_the_next_ones_make_up_for() -> None:
    sleeper = Sleeper()
    sleeper.sleep(1)
    behind = sleeper.ahead_ns
    assert behind <= 0
    sleeper.sleep(-behind)
    assert sleeper.ahead_ns <= 0
