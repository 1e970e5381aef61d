"""The command line around what PyTorch and DeepSpeed can follow of a swap plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from torch import nn
from typer.testing import CliRunner, Result

from tests.codegen.swap.swap_plans import plan_with, swapped, timed
from treadle.capture.graph import capture
from treadle.cli.main import app
from treadle.planner.documents import store
from treadle.planner.documents.plan import InputRef
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.swap.check import check

ENTRY = "tests.treadle.passes.swap.test_targets:layers"


def layers():
    torch.manual_seed(0)
    parts = [part for _ in range(3) for part in (nn.Linear(32, 32), nn.Tanh())]
    return nn.Sequential(*parts), (torch.randn(256, 32),), lambda model, x: model(x).square().mean()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace and a plan of it, saved side by side."""
    home = tmp_path_factory.mktemp("swap")
    trace = replace(timed(capture(layers, ENTRY, "train")), entry=ENTRY)
    plan = plan_with(swapped(trace, 1))
    store.save(trace, home / "step.trace.json")
    reference = InputRef(file="step.trace.json", digest=store.digest(store.load(home / "step.trace.json", Trace)))
    store.save(replace(plan, inputs={"trace": reference}), home / "step.plan.json")
    assert check(plan.decisions) == []
    return home


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in arguments])


def test_torch_offload_is_generated_checked_and_trains_to_the_same_bits(folder: Path) -> None:
    torch._dynamo.reset()
    made = call("generate", folder / "step.plan.json", "--target", "torch-offload", "-o", folder / "offload")
    assert made.exit_code == 0, made.output
    assert "activations (" in made.output
    assert "memory is not promised" in made.output
    assert call("check", folder / "offload").exit_code == 0
    done = call("run", folder / "offload", "--steps", "2", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["bit_equal"]
    assert found["target"] == "torch-offload"


def test_deepspeed_is_generated_and_checked_and_left_to_deepspeed(folder: Path) -> None:
    made = call("generate", folder / "step.plan.json", "--target", "deepspeed", "-o", folder / "deepspeed")
    assert made.exit_code == 0, made.output
    assert "DeepSpeed keeps" in made.output
    assert json.loads((folder / "deepspeed" / "deepspeed.json").read_text())["zero_optimization"]["stage"] == 3
    assert call("check", folder / "deepspeed").exit_code == 0
    done = call("run", folder / "deepspeed")
    assert isinstance(done.exception, InputError)
    assert "which DeepSpeed runs" in str(done.exception)
