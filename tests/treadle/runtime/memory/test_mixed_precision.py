"""Planned steps under autocast: captured with its conversions, called in the same mode."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn import functional as F

from tests.codegen.plans import decisions_keeping
from tests.treadle.runtime.models import plan_of
from treadle.capture.graph import capture
from treadle.capture.load import autocast_to
from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.runtime.memory.apply import apply
from treadle.runtime.meter import Meter
from treadle.runtime.planned_module import PlannedModule


class Mixed(nn.Module):
    """Ops that autocast runs in 16 bits, ops that it runs in 32, and a normalisation that updates buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.hidden, self.layer_norm, self.output = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(images))).mean((2, 3))
        return self.output(self.layer_norm(F.gelu(self.hidden(x))))


def mixed():
    torch.manual_seed(0)
    inputs = torch.randn(4, 3, 8, 8), torch.randint(5, (4,))
    return Mixed(), inputs, lambda model, images, labels: F.cross_entropy(model(images), labels)


def inside():
    """A loss that turns autocast on."""
    model, inputs, _ = mixed()

    def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            output = model(images)
        return F.cross_entropy(output.float(), labels)

    return model, inputs, loss


def planned(function, dtype: str | None, kept=()) -> tuple[nn.Module, PlannedModule, MemoryDecisions]:
    """A plain model and one under a plan that makes everything but `kept` again."""
    with autocast_to(dtype, "cpu"):
        captured = capture(function, "mixed")
    assert captured.autocast == dtype
    trace = replace(captured, ops=tuple(replace(op, time_ns=1) for op in captured.ops))
    decisions = decisions_keeping(trace, kept)
    model, *_ = function()
    return copy.deepcopy(model), apply(model, replace(plan_of("mlp"), inputs={}, decisions=decisions), trace), decisions


def assert_same_gradients(plain: nn.Module, other: nn.Module) -> None:
    for (name, expected), found in zip(plain.named_parameters(), other.parameters(), strict=True):
        assert expected.grad is not None, name
        assert torch.equal(expected.grad, found.grad), name
    for expected, found in zip(plain.buffers(), other.buffers(), strict=True):
        assert torch.equal(expected, found)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kept", [(), range(99)], ids=["recompute", "keep"])
def test_gradients_are_those_of_plain_autocast(dtype, kept):
    plain, module, decisions = planned(mixed, dtype, kept)
    _, inputs, loss = mixed()
    with autocast_to(dtype, "cpu"):
        expected = loss(plain, *inputs)
    expected.backward()
    with Meter(module, inputs) as meter:
        with autocast_to(dtype, "cpu"):
            found = module(*inputs)
        found.backward()
    assert torch.equal(expected, found)
    assert_same_gradients(plain, module)
    assert meter.peak_bytes <= decisions.exact_peak_bytes


def test_a_backward_pass_under_autocast_changes_nothing():
    plain, module, _ = planned(mixed, "bfloat16")
    _, inputs, loss = mixed()
    with autocast_to("bfloat16", "cpu"):
        expected = loss(plain, *inputs)
        module(*inputs).backward()
    expected.backward()
    assert_same_gradients(plain, module)


def test_a_scaler_skips_steps_and_unscales_as_with_the_plain_model():
    plain, module, _ = planned(mixed, "float16")
    _, inputs, loss = mixed()
    scales = []
    for model, step in ((plain, lambda: loss(plain, *inputs)), (module, lambda: module(*inputs))):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=2)
        seen = []
        for _ in range(8):
            optimizer.zero_grad(set_to_none=False)
            with autocast_to("float16", "cpu"):
                total = step()
            scaler.scale(total).backward()
            scaler.step(optimizer)
            scaler.update()
            seen.append(scaler.get_scale())
        scales.append(seen)
    assert scales[0] == scales[1]
    assert scales[0][0] < 2.0**20, "the first steps overflow and are skipped"
    assert len(set(scales[0])) > 2
    for expected, found in zip(plain.parameters(), module.parameters(), strict=True):
        assert torch.equal(expected, found)


def test_a_step_that_turns_autocast_on_by_itself_is_called_without_it():
    plain, module, _ = planned(inside, None)
    _, inputs, loss = inside()
    loss(plain, *inputs).backward()
    module(*inputs).backward()
    assert_same_gradients(plain, module)


@pytest.mark.parametrize(
    ("captured", "called", "message"),
    [
        ("bfloat16", None, "found autocast off, expected autocast to bfloat16 as when the step was captured"),
        ("bfloat16", "float16", "found autocast to float16, expected autocast to bfloat16"),
        (None, "bfloat16", "found autocast to bfloat16, expected autocast off"),
    ],
)
def test_another_mode_than_at_capture_is_refused(captured, called, message):
    _, module, _ = planned(mixed, captured)
    _, inputs, _ = mixed()
    with autocast_to(called, "cpu"), pytest.raises(InputError, match=message):
        module(*inputs)


def test_command_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "mixed_cli.py").write_text("from tests.treadle.runtime.memory.test_mixed_precision import mixed\n")
    monkeypatch.chdir(tmp_path)
    for words in (
        "trace capture mixed_cli:mixed --autocast bfloat16 --hardware cpu-2x2 -o t.json",
        "plan memory --trace t.json --budget 1.0x --without out -o p.json",
        "generate p.json -o out",
        "run out --json",
    ):
        capsys.readouterr()
        assert run(words.split()) == 0
    assert json.loads(capsys.readouterr().out)["bit_equal"]
    assert store.load(tmp_path / "t.json", Trace).autocast == "bfloat16"
