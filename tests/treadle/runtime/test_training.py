"""A folder with a generated step trains, compared with plain PyTorch; a folder that was changed is refused."""

from __future__ import annotations

import re
from fractions import Fraction

import msgspec
import pytest
import torch
from torch import nn

from tests.planner.plans import memory_plan
from tests.treadle.runtime.models import trace_of
from treadle.capture.costs import with_measured
from treadle.capture.graph import capture
from treadle.codegen.emit import text_digest, write
from treadle.codegen.targets import generate
from treadle.planner.documents import store
from treadle.planner.documents.artefact import FILE_NAME, Artefact
from treadle.planner.errors import InputError, MissingBackendError
from treadle.planner.passes.memory.planning import MemoryOptions
from treadle.runtime import training
from treadle.runtime.comparison import difference, largest
from treadle.runtime.training import run_folder

ENTRY = "tests.treadle.runtime.models:convnet"


@pytest.fixture
def folder(tmp_path):
    trace = msgspec.structs.replace(trace_of("convnet"), entry=ENTRY)
    plan = memory_plan(trace, Fraction(7, 10), options=MemoryOptions(gap=0.1))
    write(generate(plan, "plan.json", trace), tmp_path / "out")
    return tmp_path / "out"


def rewrite_manifest(folder, **changes):
    manifest = store.load(folder / FILE_NAME, Artefact)
    store.save(msgspec.structs.replace(manifest, **changes), folder / FILE_NAME)


def test_trains_beside_plain_pytorch(folder):
    result = run_folder(folder, steps=2, learning_rate=0.1)
    assert result["findings"] == []
    assert result["bit_equal"] is True
    assert result["max_gradient_difference"] == 0.0 < result["gradient_scale"]
    assert result["losses"]["eager"] == result["losses"]["planned"]
    assert len(set(result["losses"]["eager"])) == 2
    peaks = result["peak_bytes"]
    assert peaks["planned"] <= peaks["predicted"] <= peaks["budget"] < peaks["eager"]
    assert min(result["step_seconds"].values()) > 0
    for who, bytes_handed_out in result["allocator_peak_bytes"].items():
        assert bytes_handed_out >= peaks[who], "workspaces of kernels come on top"


def test_a_broken_promise_is_a_finding(folder):
    facts = store.load(folder / FILE_NAME, Artefact).facts
    rewrite_manifest(folder, facts={**facts, "budget_bytes": 1000})
    (finding,) = run_folder(folder, steps=1)["findings"]
    assert "exceeds the budget of 1000 bytes" in finding


def test_a_run_leaves_the_reserve_of_its_plan_alone(tmp_path):
    trace = msgspec.structs.replace(trace_of("convnet"), entry=ENTRY)
    options = MemoryOptions(method="heuristic", reserve_bytes=2**20)
    plan = memory_plan(trace, Fraction(1), options=options)
    for target in ("torch", "torch-sac"):
        made = generate(plan, "plan.json", trace, target)
        assert made.facts["budget_bytes"] == plan.decisions.problem.budget_bytes - 2**20
        write(made, tmp_path / target)
        peaks = run_folder(tmp_path / target, steps=1)["peak_bytes"]
        assert peaks["reserve"] == 2**20
        assert peaks["planned"] == pytest.approx(peaks["predicted"], rel=0.15)


def test_a_plan_on_costs_measured_here_answers_for_the_workspaces_of_kernels(tmp_path):
    trace = with_measured(msgspec.structs.replace(trace_of("convnet"), entry=ENTRY))
    plan = memory_plan(trace, Fraction(1), options=MemoryOptions(method="heuristic"))
    write(generate(plan, "plan.json", trace), tmp_path / "out")
    result = run_folder(tmp_path / "out", steps=1)
    assert result["findings"] == []
    tensors, handed_out = result["peak_bytes"]["planned"], result["allocator_peak_bytes"]["planned"]
    assert tensors < handed_out <= plan.decisions.exact_peak_bytes
    facts = store.load(tmp_path / "out" / FILE_NAME, Artefact).facts
    rewrite_manifest(tmp_path / "out", facts={**facts, "budget_bytes": tensors})
    (finding,) = run_folder(tmp_path / "out", steps=1)["findings"]
    assert finding == (
        f"measured peak of {handed_out} bytes with the workspaces of kernels exceeds the budget of {tensors} bytes"
    )
    rewrite_manifest(tmp_path / "out", facts={**facts, "budget_bytes": tensors, "measured_on": "another machine"})
    assert run_folder(tmp_path / "out", steps=1)["findings"] == []


def test_wrong_gradients_are_a_finding(folder):
    text = (folder / "step.py").read_text()
    changed = re.sub(r"(aten\.threshold_backward\.default\([^()]*, )0\)", r"\g<1>0.5)", text, count=1)
    assert changed != text
    (folder / "step.py").write_text(changed)
    with pytest.raises(InputError, match=r"step\.py: found a text other than the one that was generated"):
        run_folder(folder)
    manifest = store.load(folder / FILE_NAME, Artefact)
    rewrite_manifest(folder, files={**manifest.files, "step.py": text_digest(changed)})
    (finding,) = run_folder(folder, steps=1)["findings"]
    assert re.match("gradients of '.*' differ from plain PyTorch by ", finding)


class Late(nn.Module):
    """Multiplies by something else from its third call on, which no plan of the first ones can know."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(8, 8), 0

    def forward(self, x):
        self.calls += 1
        return (self.layer(x) * (1.0 if self.calls < 3 else 3.0)).square().mean()


def late():
    return Late(), (torch.randn(4, 8),)


def test_every_step_is_judged(tmp_path):
    trace = capture(late, "late")
    ops = tuple(msgspec.structs.replace(op, time_ns=1) for op in trace.ops)
    trace = msgspec.structs.replace(trace, ops=ops, entry=f"{__name__}:late")
    write(generate(memory_plan(trace, Fraction(1)), "plan.json", trace), tmp_path / "out")
    assert run_folder(tmp_path / "out", steps=2)["findings"] == []
    gradients, losses = run_folder(tmp_path / "out", steps=3)["findings"]
    assert gradients.startswith("gradients of 'layer.weight' differ from plain PyTorch by ")
    assert losses.startswith("losses differ from plain PyTorch by ")
    assert "in step 3" in gradients
    assert "in step 3" in losses


def test_wrong_buffers_are_a_finding(folder):
    text = (folder / "step.py").read_text()
    line = next(line for line in text.splitlines() if ".running_var" in line and ".copy_(" in line)
    changed = text.replace(line, re.sub(r"copy_\((.*)\)$", r"copy_(aten.mul.Scalar(\1, 1.01))", line), 1)
    (folder / "step.py").write_text(changed)
    manifest = store.load(folder / FILE_NAME, Artefact)
    rewrite_manifest(folder, files={**manifest.files, "step.py": text_digest(changed)})
    (finding,) = run_folder(folder, steps=2)["findings"]
    assert finding.startswith("values of buffer block.1.running_var differ from plain PyTorch by ")
    assert "in step 1" in finding


def test_values_that_are_not_finite_are_compared_too():
    nan, one = torch.tensor([float("nan"), 1.0]), torch.tensor([1.0, 1.0])
    assert difference(nan, nan) == 0.0
    assert difference(nan, one) == difference(one, nan) == float("inf")
    assert difference(one / 0, one / 0) == 0.0
    assert difference(torch.tensor([True]), torch.tensor([False])) == 1.0
    assert largest(nan) == 1.0


def test_folders_and_backends_that_cannot_run(folder):
    with pytest.raises(InputError, match="expected cpu or cuda"):
        run_folder(folder, backend="tpu")
    if not torch.cuda.is_available():
        with pytest.raises(MissingBackendError, match="no CUDA device"):
            run_folder(folder, backend="cuda")
    rewrite_manifest(folder, entry=None)
    with pytest.raises(InputError, match=r"\$\.entry: found no entry"):
        run_folder(folder)
    rewrite_manifest(folder, target="msccl-xml")
    with pytest.raises(InputError, match="expected torch"):
        run_folder(folder)


class Branches(nn.Module):
    """Returns the results of its last `count` of six layers."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))
        self.count = count

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        found = []
        for layer in self.layers:
            x = nn.functional.gelu(layer(x))
            found.append(x)
        return tuple(found[-self.count :]) if self.count > 1 else x


def one_output():
    return Branches(1), (torch.randn(256, 64),)


def three_outputs():
    return Branches(3), (torch.randn(256, 64),)


@pytest.mark.parametrize("function", [one_output, three_outputs])
def test_a_step_without_a_loss_keeps_the_predicted_peak(function, tmp_path):
    trace = capture(function, "branches")
    ops = tuple(msgspec.structs.replace(op, time_ns=1) for op in trace.ops)
    trace = msgspec.structs.replace(trace, ops=ops, entry=f"{__name__}:{function.__name__}")
    plan = memory_plan(trace, Fraction(8, 10), options=MemoryOptions(gap=0.1))
    write(generate(plan, "plan.json", trace), tmp_path / "out")
    result = run_folder(tmp_path / "out", steps=2)
    peaks = result["peak_bytes"]
    assert result["findings"] == []
    assert peaks["planned"] <= peaks["predicted"] <= peaks["budget"] < peaks["eager"]


def test_the_loss_of_a_step_without_one_is_that_of_mean_squares():
    leaves = [torch.randn(5, 3, requires_grad=True), torch.randn(4, requires_grad=True)]
    loss = training.loss_of(tuple(leaves))
    expected = sum(leaf.square().mean() for leaf in leaves)
    torch.testing.assert_close(loss, expected)
    for found, wanted in zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(found, wanted)
