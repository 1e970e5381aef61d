"""The meter against hand-computed cases and PyTorch's own memory tracker."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker

from examples.models import gpt2
from treadle.runtime.meter import Meter


def test_each_storage_counts_once_for_as_long_as_it_lives():
    x = torch.ones(100)
    with Meter(x, [x.view(10, 10)]) as meter:
        assert meter.live_bytes == 400
        y = x * 2
        view = y.view(4, 25)[1]
        del y
        assert meter.live_bytes == 800
        z = torch.cat([x, view])
        assert meter.live_bytes == meter.peak_bytes == 1300
        del view
        assert meter.live_bytes == 900
        z.add_(1)
    assert meter.peak_bytes == 1300
    assert meter.peak == {"inputs": 400, "made": 900}


def test_modules_bring_parameters_buffers_and_gradients():
    model = nn.BatchNorm1d(8)
    model.weight.grad = torch.zeros(8)
    batch = torch.ones(2, 8)
    with Meter(model, {"batch": (batch,)}) as meter:
        pass
    assert meter.live == {"parameters": 64, "gradients": 32, "buffers": 72, "inputs": 64}
    assert meter.peak_bytes == 232


def test_a_resized_storage_counts_as_what_it_became():
    with Meter() as meter:
        x = torch.empty(0)
        x.resize_(50)
        assert meter.live_bytes == 200
        del x
    assert meter.live_bytes == 0


def test_memory_freed_after_the_block_is_followed_too():
    with Meter() as meter:
        x = torch.ones(10)
    del x
    assert meter.live_bytes == 0
    assert meter.peak_bytes == 40


def test_same_peak_as_the_tracker_of_pytorch():
    model, inputs, loss = gpt2.tiny()
    tracker = MemTracker()
    tracker.track_external(model, *inputs)
    with tracker:
        loss(model, *inputs).backward()
    expected = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    model.zero_grad()
    with Meter(model, inputs) as meter:
        loss(model, *inputs).backward()
    assert meter.peak_bytes == expected
