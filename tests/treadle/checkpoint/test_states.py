"""Training goes on with the same bits from the states that a checkpoint has."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn, optim

from tests.treadle.checkpoint.small import Training
from treadle.checkpoint.layout import Packer, unpack
from treadle.checkpoint.states import TrainingStates
from treadle.planner.errors import CheckFailed, InputError


def states_of(training: Training) -> TrainingStates:
    return TrainingStates(training.model, training.optimizer, {"schedule": training.schedule})


def test_losses_go_on_bit_by_bit_in_another_process_state() -> None:
    training = Training()
    states = states_of(training)
    training.steps(3)
    data = torch.cat(Packer().pack(3, states.tree(3)).parts)
    expected = training.steps(4), random.random(), np.random.rand()
    other = Training(seed=99)
    random.seed(5)
    np.random.seed(5)
    version, tree = unpack(data)
    states_of(other).load(tree)
    assert (version, tree["step"]) == (3, 3)
    assert (other.steps(4), random.random(), np.random.rand()) == expected


def test_buffers_are_copied_and_weights_are_not() -> None:
    training = Training()
    tree = states_of(training).tree(0)
    before = tree["buffers"]["1.running_mean"].clone()
    training.model(torch.randn(6, 8))
    assert torch.equal(tree["buffers"]["1.running_mean"], before)
    assert tree["weights"]["0.weight"] is training.model[0].weight


def test_a_change_of_weights_or_optimizer_states_counts() -> None:
    training = Training()
    training.steps(1)
    states = states_of(training)
    before = states.changes()
    training.model(torch.randn(6, 8)).sum().backward()
    assert states.changes() == before
    training.optimizer.state[training.model[0].weight]["exp_avg"].mul_(2)
    assert states.changes() > before


def test_states_of_another_model_are_refused() -> None:
    training = Training()
    tree = unpack(torch.cat(Packer().pack(0, states_of(training).tree(0)).parts))[1]
    other = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(), nn.Linear(16, 5))
    with pytest.raises(CheckFailed, match=r"found '3\.weight' of torch\.float32 \(4, 16\), this one is .* \(5, 16\)"):
        TrainingStates(other, optim.Adam(other.parameters()), {"schedule": training.schedule}).load(tree)
    with pytest.raises(CheckFailed, match="found other states in the checkpoint than here: 'schedule'"):
        TrainingStates(training.model, training.optimizer, {}).load(tree)
    descent = optim.SGD(training.model.parameters(), lr=0.05)
    with pytest.raises(CheckFailed, match="found the states of another optimizer, without 'dampening'"):
        TrainingStates(training.model, descent, {"schedule": training.schedule}).load(tree)


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    training = Training()
    with pytest.raises(InputError, match="a parameter of the optimizer that is none of the model's"):
        TrainingStates(nn.Linear(2, 2), training.optimizer, {})
