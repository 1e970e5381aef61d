"""Models that train cut over workers: the same losses as on one, the planned collectives and no others."""

from __future__ import annotations

import re

import msgspec
import pytest
import torch
from torch import nn

from tests.treadle.runtime.tiling import models_to_cut
from tests.treadle.runtime.tiling.models_to_cut import Cuts, convnet, gpt, mlp, planned
from treadle.codegen.tiling.dtensor_model import step_text
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import CheckFailed, InputError
from treadle.runtime.launch import launch
from treadle.runtime.tiling.shard import shard, sharded
from treadle.runtime.tiling.training import run_model

BATCH: Cuts = {"input_0": ("S0",), "input_1": ("S0",)}
HIDDEN: Cuts = {"0.weight": ("S0",), "3.weight": ("S1",)}
GRID: Cuts = {"input_0": ("S0", "R"), "blocks.0.expand.weight": ("R", "S0"), "blocks.0.contract.weight": ("S0", "S1")}


@pytest.fixture(scope="module")
def small() -> tuple[Plan, Trace]:
    return planned(mlp, (2,), HIDDEN)


def test_a_model_is_cut_over_as_many_processes_as_the_mesh_has_workers(small) -> None:
    model, _, _ = mlp()
    with pytest.raises(InputError, match=r"found 1 processes of .*, expected 2, the workers of the mesh 2"):
        shard(model, *small)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "sizes", "cuts", "gathered"),
    [
        pytest.param(convnet, (2,), BATCH, True, id="batch-of-images"),
        pytest.param(gpt, (2, 2), GRID, False, id="transformer-on-a-grid"),
    ],
)
def test_losses_are_those_of_one_process_and_collectives_those_of_the_plan(function, sizes, cuts, gathered) -> None:
    plan, trace = planned(function, sizes, cuts, gathered=gathered)
    entry = f"{models_to_cut.__name__}:{function.__name__}"
    found = run_model(plan, step_text(plan.decisions, trace), entry, trace, steps=5)
    assert found["findings"] == []
    assert len(found["losses"]["planned"]) == 5
    assert found["collectives"]["counted"] == found["collectives"]["planned"] != {}
    assert found["difference"] < 1e-5
    assert found["confirmed"] > 0


@pytest.mark.slow
def test_a_killed_worker_ends_the_run(small) -> None:
    plan, trace = small
    entry = f"{models_to_cut.__name__}:dying"
    with pytest.raises(CheckFailed, match=r"rank 1 was killed by signal 9 .*; the other ranks were stopped"):
        run_model(plan, step_text(plan.decisions, trace), entry, None, steps=1)


@pytest.mark.slow
def test_a_step_that_moves_more_than_the_plan_is_found(small) -> None:
    plan, trace = small
    lines = step_text(plan.decisions, trace).splitlines(keepends=True)
    place = next(place for place, line in enumerate(lines) if " = mesh.all" in line)
    idle = re.sub(r"\S+ = ", "unread = ", lines[place])
    text = "".join([*lines[:place], idle, *lines[place:]])
    found = run_model(plan, text, f"{models_to_cut.__name__}:mlp", trace, steps=2)
    assert [finding.split(" ran ")[0] for finding in found["findings"]] == ["worker 0", "worker 1"]


@pytest.mark.slow
def test_states_batches_and_gradients_of_each_worker(small) -> None:
    first, second = launch(2, inspected, (step_text(small[0].decisions, small[1]),))
    assert first["states"] == second["states"] == {"0.weight": [8, 8], "3.weight": [4, 8]}
    assert first["gradients"]
    assert first["loss"] == second["loss"] == first["part"]
    assert first["wrong"] == "mlp: found x of float32 [3, 8], expected float32 [8, 8]; capture and plan again"


def inspected(rank: int, world: int, text: str) -> dict[str, object]:
    with pytest.raises(InputError, match=r"found no parameter .*, expected the model that was captured"):
        sharded(nn.Sequential(nn.Linear(8, 16, bias=False)), text, "mlp")
    torch.manual_seed(0)
    model, (x, y), _ = mlp()
    cut = sharded(model, text, "mlp")
    optimizer = torch.optim.AdamW(cut.parameters())
    torch.manual_seed(1)
    loss = cut(x, y)
    loss.backward()
    alike = all(p.grad is not None and p.grad.placements == p.placements for p in cut.parameters())
    tiles = [cut._placed(place, tensor).to_local() for place, tensor in enumerate((x, y))]
    torch.manual_seed(1)
    part = cut(*tiles)
    optimizer.step()
    states = {name: list(optimizer.state[p]["exp_avg"].to_local().shape) for name, p in model.named_parameters()}
    with pytest.raises(InputError) as error:
        cut(x[:3], y)
    return {
        "states": {name: shape for name, shape in states.items() if name.endswith("weight")},
        "gradients": alike,
        "loss": float(loss),
        "part": float(part),
        "wrong": str(error.value),
    }


def test_plans_of_another_trace_are_refused(small) -> None:
    plan, trace = small
    fewer = msgspec.structs.replace(trace, ops=trace.ops[1:])
    with pytest.raises(InputError, match="expected a plan of this trace"):
        step_text(plan.decisions, fewer)
