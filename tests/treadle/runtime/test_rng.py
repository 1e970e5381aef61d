"""Random draws repeat inside a replay and go on outside it."""

from __future__ import annotations

import pytest
import torch

from treadle.runtime import rng

CPU = torch.device("cpu")


def test_a_replay_draws_the_same_and_leaves_the_generator_where_it_was():
    torch.manual_seed(3)
    saved = rng.state(CPU)
    first, second, third = (torch.rand(5) for _ in range(3))
    torch.manual_seed(3)
    assert torch.equal(torch.rand(5), first)
    with rng.replayed(saved, CPU):
        assert torch.equal(torch.rand(5), first)
        assert torch.equal(torch.rand(5), second)
    assert torch.equal(torch.rand(5), second)
    with pytest.raises(ZeroDivisionError), rng.replayed(saved, CPU):
        torch.rand(100 // 0)
    assert torch.equal(torch.rand(5), third)


def test_a_saved_state_does_not_move():
    saved = rng.state(CPU)
    before = saved.clone()
    torch.rand(5)
    assert torch.equal(saved, before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_generator():
    device = torch.device("cuda")
    saved = rng.state(device)
    first, second = torch.rand(5, device=device), torch.rand(5, device=device)
    with rng.replayed(saved, device):
        assert torch.equal(torch.rand(5, device=device), first)
    rng.restore(saved, device)
    assert torch.equal(torch.rand(5, device=device), first)
    assert torch.equal(torch.rand(5, device=device), second)
