"""DistributedDataParallel around a planned model: two processes over gloo."""

from __future__ import annotations

import copy
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.treadle.runtime.models import STEPS, plan_of, trace_of
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.trace import Trace
from treadle.runtime.launch import launch
from treadle.runtime.memory.apply import apply

WORLD = 2


def train(rank: int, world: int, folder: str) -> dict[str, list[list[torch.Tensor]]]:
    """Two steps, plain and planned, each with its own gradients, which are returned; the second one accumulates."""
    place = Path(folder)
    plan, trace = store.load(place / "plan.json", Plan), store.load(place / "trace.json", Trace)
    torch.manual_seed(0)
    model, _, loss = STEPS["convnet"]()
    planned_model = copy.deepcopy(model)
    plain = DistributedDataParallel(model, bucket_cap_mb=0.001)
    planned = DistributedDataParallel(apply(planned_model, plan, trace), bucket_cap_mb=0.001)
    found = {"plain": [], "planned": []}
    for step in range(2):
        torch.manual_seed(10 * step + rank)
        _, inputs, _ = STEPS["convnet"]()
        for name, module, parallel, call in (
            ("plain", model, plain, lambda inputs=inputs: loss(plain, *inputs)),
            ("planned", planned_model, planned, lambda inputs=inputs: planned(*inputs)),
        ):
            torch.manual_seed(100 + 10 * step + rank)
            nn.Module.zero_grad(module)
            if step:
                with parallel.no_sync():
                    call().backward()
            call().backward()
            found[name].append([p.grad.clone() for p in module.parameters()])
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.sub_(parameter.grad, alpha=0.1)
    return found


@pytest.mark.slow
@pytest.mark.skipif(not distributed.is_gloo_available(), reason="this PyTorch has no gloo")
def test_gradients_are_those_of_plain_data_parallel_training(tmp_path):
    store.save(plan_of("convnet", Fraction(8, 10)), tmp_path / "plan.json")
    store.save(trace_of("convnet"), tmp_path / "trace.json")
    ranks = launch(WORLD, train, (str(tmp_path),), timeout=120)
    for step in range(2):
        for index in range(len(ranks[0]["plain"][step])):
            expected = ranks[0]["plain"][step][index]
            for rank in ranks:
                torch.testing.assert_close(rank["planned"][step][index], expected, rtol=1e-5, atol=1e-7)
                assert torch.equal(rank["plain"][step][index], expected)
