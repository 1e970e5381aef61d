"""Small models, and plans that cut them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional as F

from examples.models.gpt2 import tiny
from treadle.capture.graph import capture
from treadle.passes.tiling.extract import ModelTiling, problem_of_trace
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.trace import Trace
from treadle.planner.passes.tiling.planning import plan_tiling
from treadle.planner.passes.tiling.problem import ArrayTiling, MeshAxis

Cuts = dict[str, ArrayTiling]


def gpt() -> Any:
    torch.manual_seed(0)
    return tiny(batch=4, tokens=16)


def mlp() -> Any:
    """One linear layer of which the second is cut along what it sums over, and dropout."""
    layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 4))
    return layers, (torch.randn(8, 8), torch.randn(8, 4)), lambda model, x, y: F.mse_loss(model(x), y)


def convnet() -> Any:
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
    inputs = torch.randn(8, 3, 8, 8), torch.randint(4, (8,))
    return layers, inputs, lambda model, x, y: F.cross_entropy(model(x), y)


def dying() -> Any:
    """`mlp`, of which the second worker is killed."""
    if distributed.is_initialized() and distributed.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return mlp()


def planned(
    function: Callable[[], Any], sizes: tuple[int, ...], cuts: Cuts, *, gathered: bool = False
) -> tuple[Plan, Trace]:
    """The plan of `function` on a mesh of these sizes in which tensors are fixed by `cuts`."""
    trace = capture(function, function.__name__)
    axes = tuple(
        MeshAxis(name=f"x{place}", size=size, alltoall="gathered" if gathered else "direct")
        for place, size in enumerate(sizes)
    )
    found = problem_of_trace(trace, ModelTiling(mesh=axes, model="exact", fixed=cuts))
    return plan_tiling(found.problem), trace
