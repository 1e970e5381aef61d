"""Run a folder that holds a generated PyTorch step: train under the plan next to plain PyTorch and compare."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from treadle.capture.costs.measuring import this_device
from treadle.capture.load import ModelStep, autocast_to, build_step, load_function
from treadle.codegen import emit
from treadle.planner.documents import artefact
from treadle.planner.documents.artefact import Artefact
from treadle.planner.documents.scalars import format_bytes, many
from treadle.planner.errors import InputError, MissingBackendError
from treadle.runtime.comparison import difference, largest, relative_tolerance
from treadle.runtime.followers import FILES, Follower, follow, plain
from treadle.runtime.meter import Meter, allocator_peak
from treadle.runtime.rounding import wrong_gradients
from treadle.runtime.values import differentiated

TIMED_STEPS = 3


def run_folder(
    folder: Path | str,
    *,
    steps: int = 3,
    backend: str = "cpu",
    learning_rate: float = 0.01,
    seed: int = 0,
    source: Path | str = ".",
) -> dict[str, Any]:
    """Train `steps` steps of plain SGD twice, from the same seed on the same batches: eagerly and under the plan.

    Both start every step from the same parameters and buffers, those of the eager run: steps are judged in isolation.
    The model comes from the manifest's entry MODULE:FUNCTION, looked for in `source`. Returned, in bytes, seconds and
    plain numbers: `losses` and `step_seconds` (forward and backward, median) of both; `peak_bytes` of both as measured
    by `Meter`, of the plan's prediction and its budget; `bit_equal`, `max_gradient_difference` and `gradient_scale`
    (largest gradient) over all steps; `gradient_rounding`, how far the eager run's own gradients are from those in
    double precision where that had to be known (then the plan's may be some times as far);
    `allocator_peak_bytes` of both, with what kernels allocate inside; `findings`, a sentence for each promise that did
    not hold: the memory budget (of the allocator too, where the plan is on costs measured on this CPU), and gradients,
    loss and every buffer equal to plain PyTorch's in every step (named with the first step that breaks it).

    Raises InputError for a folder that is no generated PyTorch step or was changed, MissingBackendError for a backend
    that this machine lacks.
    """
    manifest, text = _open(Path(folder))
    device = _device(backend)
    assert manifest.entry is not None
    function = load_function(manifest.entry, source)

    def prepare(at: int) -> ModelStep:
        torch.manual_seed(at)
        step = build_step(function, str(manifest.entry))
        moved = step.with_inputs([tensor.to(device) for tensor in step.inputs])
        return moved._replace(model=step.model.to(device))

    autocast = autocast_to(manifest.facts.get("autocast"), device.type)
    first = prepare(seed)
    eager = ComparedTraining(first.model, plain(first.model, first.loss), learning_rate, autocast)
    second = prepare(seed)
    buffers = dict(second.model.named_buffers())
    follower = follow(manifest.target, text, manifest.entry, second.model, second.loss)
    planned = ComparedTraining(second.model, follower, learning_rate, autocast, buffers)
    narrow = bool(manifest.facts.keys() & {"autocast", "narrow"})
    tolerance = relative_tolerance(eager.parameters, narrow)
    names = [name for name, _ in eager.model.named_parameters()]
    differences, scales = [], []
    findings: dict[str, str] = {}
    bit_equal = True
    rounding = 0.0
    batch = first
    for step in range(steps):
        batch = prepare(seed + 1 + step)
        for run in (eager, planned):
            torch.manual_seed(seed + 1 + step)
            run.train(batch)
        pairs = [(a.grad, b.grad) for a, b in zip(eager.parameters, planned.parameters, strict=True)]
        bit_equal &= all(a is b is None or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)
        differences.append(max((difference(a, b) for a, b in pairs), default=0.0))
        scales.append(max((largest(a) for a, _ in pairs if a is not None), default=0.0))
        named = dict(zip(names, pairs, strict=True))
        at = seed + 1 + step
        plain_step = batch._replace(model=eager.model)
        wrong, own = wrong_gradients(named, plain_step, at, _backward, autocast, narrow=narrow)
        rounding = max(rounding, own)
        compared = [(f"gradients of {name!r}", *_gap(*named[name])) for name in wrong[:1]]
        compared += [
            (what, gap, scale)
            for what, gap, scale, allowed in _state_differences(eager, planned, tolerance)
            if not gap <= allowed * scale
        ]
        for what, gap, scale in compared:
            findings.setdefault(
                "gradients" if what.startswith("gradients") else what,
                f"{what} differ from plain PyTorch by {gap:.3g} in step {step + 1}, the largest is {scale:.3g}",
            )
        eager.update()
        planned.follow(eager)
    peaks = {"eager": eager.peak_bytes, "planned": planned.peak_bytes}
    peaks |= {
        key: manifest.facts[f"{key}_bytes"]
        for key in ("predicted", "budget", "reserve")
        if f"{key}_bytes" in manifest.facts
    }
    if manifest.target == "torch" and peaks["planned"] > peaks.get("budget", peaks["planned"]):
        findings["peak"] = f"measured peak of {peaks['planned']} bytes exceeds the budget of {peaks['budget']} bytes"
    if device.type == "cpu":
        for run in (eager, planned):
            run.measure_allocator(batch)
        allocated = planned.allocator_peak_bytes or 0
        # Only a plan on costs measured here knows the workspaces. A CUDA allocator hands out more than it is asked for.
        planned_here = manifest.target == "torch" and manifest.facts.get("measured_on") == this_device()
        if planned_here and allocated > peaks.get("budget", allocated):
            findings["allocator peak"] = (
                f"measured peak of {allocated} bytes with the workspaces of kernels exceeds the budget of "
                f"{peaks['budget']} bytes"
            )
    # In turns, so that a busy moment of the machine does not fall on one of them alone.
    times = list(zip(*((eager.seconds(batch), planned.seconds(batch)) for _ in range(TIMED_STEPS)), strict=True))
    return {
        "target": manifest.target,
        "backend": backend,
        "steps": steps,
        "losses": {"eager": eager.losses, "planned": planned.losses},
        "bit_equal": bit_equal,
        "max_gradient_difference": max(differences, default=0.0),
        "gradient_scale": max(scales, default=0.0),
        "gradient_rounding": rounding,
        "peak_bytes": peaks,
        "allocator_peak_bytes": {"eager": eager.allocator_peak_bytes, "planned": planned.allocator_peak_bytes},
        "step_seconds": {"eager": statistics.median(times[0]), "planned": statistics.median(times[1])},
        "findings": list(findings.values()),
    }


def training_lines(result: dict[str, Any]) -> list[str]:
    """What people read of the result of `run_folder`."""
    peaks, losses, seconds = result["peak_bytes"], result["losses"], result["step_seconds"]
    handed_out, target = result["allocator_peak_bytes"], result["target"]
    equal = "bit-equal" if result["bit_equal"] else f"within {result['max_gradient_difference']:.3g}"
    if result["gradient_rounding"]:
        equal += f" (plain PyTorch's own are {result['gradient_rounding']:.3g} off double precision)"
    lines = [
        f"{many(result['steps'], 'training step')}, plain PyTorch next to the plan; gradients {equal}",
        f"  loss         {losses['eager'][-1]:.6g} plain, {losses['planned'][-1]:.6g} planned",
        f"  peak         {format_bytes(peaks['eager'])} plain, {format_bytes(peaks['planned'])} planned"
        + (f", {format_bytes(peaks['predicted'])} predicted" if "predicted" in peaks else "")
        + (f", budget {format_bytes(peaks['budget'])}" if "budget" in peaks else "")
        + (f" in addition to a reserve of {format_bytes(peaks['reserve'])}" if "reserve" in peaks else ""),
    ]
    if None not in handed_out.values():
        lines.append(
            f"  allocator    {format_bytes(handed_out['eager'])} plain, "
            f"{format_bytes(handed_out['planned'])} planned, workspaces of kernels included"
        )
    lines.append(f"  step         {seconds['eager'] * 1e3:.1f} ms plain, {seconds['planned'] * 1e3:.1f} ms planned")
    if target == "torch-offload":
        if result["backend"] == "cpu":
            lines.append(
                "  stand-ins copy on the CPU, within the same memory: peak and step say nothing of an accelerator"
            )
    elif target != "torch" and peaks["planned"] >= peaks["eager"]:
        lines.append(f"  {target} saves no memory for this model: plain PyTorch needs as little")
    elif target != "torch" and peaks["planned"] > peaks["budget"]:
        lines.append(f"  {target} leaves the order of recomputation to PyTorch and does not hold the budget here")
    return lines


class ComparedTraining:
    """One of the two trainings. `buffers` are those of `model` under the model's own names."""

    def __init__(
        self,
        model: nn.Module,
        follower: Follower,
        learning_rate: float,
        autocast: AbstractContextManager[Any],
        buffers: dict[str, Tensor] | None = None,
    ) -> None:
        self.model, self.follower, self.autocast = model, follower, autocast
        self.parameters = list(model.parameters())
        self.buffers = dict(model.named_buffers()) if buffers is None else buffers
        self.optimizer = torch.optim.SGD(self.parameters, lr=learning_rate)
        self.losses: list[float] = []
        self.peak_bytes = 0
        self.allocator_peak_bytes: int | None = None

    def train(self, batch: ModelStep) -> None:
        meter = Meter(self.model, batch.inputs)
        with self.follower.watching(meter):
            self.losses.append(self._step(batch))
        self.peak_bytes = max(self.peak_bytes, meter.peak_bytes)
        if meter.allocator_peak_bytes is not None:
            self.allocator_peak_bytes = max(self.allocator_peak_bytes or 0, meter.allocator_peak_bytes)

    def measure_allocator(self, batch: ModelStep) -> None:
        """What the CPU's allocator hands out over one more step, workspaces included."""
        self.allocator_peak_bytes = allocator_peak(lambda: self._step(batch), self.model, batch.inputs)
        self.optimizer.zero_grad()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def follow(self, other: ComparedTraining) -> None:
        """Take over the parameters and buffers of `other` for the next step."""
        for mine, theirs in ((self.parameters, other.parameters), (self.buffers.values(), other.buffers.values())):
            for a, b in zip(mine, theirs, strict=True):
                if not torch.equal(a, b):
                    a.copy_(b)
        self.optimizer.zero_grad()

    def seconds(self, batch: ModelStep) -> float:
        """Time of a forward and backward pass, without the meter."""
        start = time.perf_counter()
        self._step(batch)
        elapsed = time.perf_counter() - start
        self.optimizer.zero_grad()
        return elapsed

    def _step(self, batch: ModelStep) -> float:
        """Loss of a forward and backward pass."""
        with self.autocast:
            total = loss_of(self.follower.call(*batch.args, **batch.kwargs))
        total.backward()
        return float(total.detach())


def loss_of(outputs: Any) -> Tensor:
    """The one scalar that a step returns, or its `loss`; a step without a loss is trained on the mean squares of its
    outputs."""
    floating = differentiated(outputs)
    if len(floating) == 1 and floating[0].numel() == 1:
        return floating[0]
    loss: Tensor = _MeanSquares.apply(*floating)  # type: ignore[no-untyped-call]
    return loss


class _MeanSquares(torch.autograd.Function):
    """The sum of the mean squares of tensors. Peaks are compared with the plan, which counts outputs and their
    gradients, so this makes these gradients and nothing else of their size, which PyTorch's own operators would."""

    @staticmethod
    def forward(ctx: Any, *leaves: Tensor) -> Tensor:
        ctx.save_for_backward(*leaves)
        return torch.stack([torch.linalg.vector_norm(leaf).square() / max(leaf.numel(), 1) for leaf in leaves]).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        return tuple(leaf * (2 / max(leaf.numel(), 1) * float(gradient)) for leaf in ctx.saved_tensors)


def _backward(outputs: Any) -> None:
    loss_of(outputs).backward()


def _gap(a: Tensor | None, b: Tensor | None) -> tuple[float, float]:
    return difference(a, b), largest(a) if a is not None else 0.0


def _state_differences(
    eager: ComparedTraining, planned: ComparedTraining, tolerance: float
) -> Iterator[tuple[str, float, float, float]]:
    """(what, difference, largest value, tolerance) of the last loss and of every buffer; whole numbers are exact."""
    a, b = (torch.tensor(run.losses[-1], dtype=torch.float64) for run in (eager, planned))
    yield "losses", difference(a, b), largest(a), tolerance
    for name, buffer in eager.buffers.items():
        exact = not (buffer.is_floating_point() or buffer.is_complex())
        allowed = 0.0 if exact else tolerance
        yield f"values of buffer {name}", difference(buffer, planned.buffers[name]), largest(buffer), allowed


def _open(folder: Path) -> tuple[Artefact, str]:
    """The manifest and the module's text, unchanged since they were written."""
    where = str(folder / artefact.FILE_NAME)
    manifest, texts = emit.read(folder)
    if FILES.get(manifest.target) not in manifest.files:
        expected = "torch, torch-sac, torch-compile or torch-offload with its file"
        raise InputError(f"found an artefact of target {manifest.target}, expected {expected}", where=where)
    if manifest.entry is None:
        raise InputError("found no entry, expected MODULE:FUNCTION of the model", where=where, path="$.entry")
    return manifest, texts[FILES[manifest.target]]


def _device(backend: str) -> torch.device:
    if backend not in ("cpu", "cuda"):
        raise InputError(f"found {backend!r}, expected cpu or cuda", where="--backend")
    if backend == "cuda" and not torch.cuda.is_available():
        raise MissingBackendError("no CUDA device that PyTorch can use; run with --backend cpu")
    return torch.device(backend)
