"""One step under a plan compared with plain PyTorch, as far as memory allows.

Where a step of plain PyTorch fits into memory next to two copies of the model, values, gradients and buffers are
compared. Elsewhere the model itself takes one step under the plan, and its outputs are compared with those of a forward
pass without gradients, which needs no more memory than the plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from treadle.capture.load import ModelStep
from treadle.fitting.call_form import ModelCall
from treadle.fitting.free_memory import free_bytes
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import CheckFailed, InputError
from treadle.runtime.comparison import relative_tolerance, value_finding
from treadle.runtime.memory.verify import SEED, backward, verify_plan
from treadle.runtime.meter import Meter
from treadle.runtime.planned_module import PlannedModule
from treadle.runtime.values import tensors_of

COPIES = 3
"""Models that a comparison with plain PyTorch has at once, besides the one that takes the step."""
MARGIN = 1.1


def verified(
    planned: PlannedModule, call: ModelCall, loss: Callable[..., Any] | None, trace: Trace, budget_bytes: int
) -> str:
    """What was verified, in words. Raises CheckFailed where values or the peak are not those of the plan."""
    model, device = planned.model, next(planned.model.parameters()).device
    state = sum(x.nbytes for x in (*model.parameters(), *model.buffers()))
    needed, free = int(MARGIN * ((trace.plain_peak_bytes or 0) + COPIES * state)), free_bytes(device)
    if trace.plain_peak_bytes is not None and needed <= free:
        try:
            return _compared(planned, call, loss, trace, budget_bytes)
        except (InputError, RuntimeError, TypeError, MemoryError):
            # No copy of the model can be made, or there was less memory than it seemed.
            reason = "plain PyTorch's step did not run next to it"
    else:
        reason = f"plain PyTorch's step next to it needs {format_bytes(needed)}, {format_bytes(free)} are free"
    return f"{_own_step(planned, call, loss, trace, budget_bytes)}; gradients were not compared: {reason}"


def _compared(
    planned: PlannedModule, call: ModelCall, loss: Callable[..., Any] | None, trace: Trace, budget_bytes: int
) -> str:
    found = verify_plan(ModelStep(planned.model, *call, loss), trace, planned.step.text, budget_bytes)
    if found.findings:
        raise _failed(trace, found.findings)
    gap, peaks, seconds = (found.measured[key] for key in ("largest_difference", "peak_bytes", "step_seconds"))
    values = "equal to the last bit" if gap == 0 else f"equal within {gap:.3g} of the largest"
    return (
        f"one step verified: outputs, gradients and buffers of plain PyTorch {values}, "
        f"peak {format_bytes(peaks['program'])}, {seconds['program'] / seconds['plain']:.2f}x of its time"
    )


def _own_step(
    planned: PlannedModule, call: ModelCall, loss: Callable[..., Any] | None, trace: Trace, budget_bytes: int
) -> str:
    """A step of the model itself, whose gradients, buffers and random numbers are put back. Those of the batch are of
    tensors that share its memory."""
    model, step = planned.model, ModelStep(planned.model, *call, loss)
    step = step.with_inputs([x.detach().requires_grad_(x.requires_grad) for x in step.inputs])
    gradients = {parameter: parameter.grad for parameter in model.parameters()}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    devices = list(range(torch.cuda.device_count()))
    try:
        with torch.random.fork_rng(devices=devices):
            for parameter in gradients:
                parameter.grad = None
            torch.manual_seed(SEED)
            with torch.no_grad():
                expected = _tensors(step.run())
            _put_back(model, buffers)
            torch.manual_seed(SEED)
            with Meter(model, step.args, step.kwargs) as meter:
                outputs = planned(*step.args, **step.kwargs)
            found = _tensors(outputs)
            with meter:
                backward(outputs)
    finally:
        _put_back(model, buffers)
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
    tolerance = relative_tolerance(model.parameters(), trace.narrow)
    together = enumerate(zip(expected, found, strict=True))
    compared = [value_finding(f"output {place}", a, b, tolerance) for place, (a, b) in together]
    findings = [finding for finding in compared if finding]
    if meter.peak_bytes > budget_bytes:
        findings.append(
            f"the peak of {format_bytes(meter.peak_bytes)} exceeds the budget of {format_bytes(budget_bytes)}"
        )
    if findings:
        raise _failed(trace, tuple(findings))
    return f"one step verified: outputs of plain PyTorch's forward pass, peak {format_bytes(meter.peak_bytes)}"


def _failed(trace: Trace, findings: tuple[str, ...]) -> CheckFailed:
    return CheckFailed(f"{trace.name}: the plan is not verified: {findings[0]}", findings)


def _tensors(outputs: Any) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors_of(outputs)]


def _put_back(model: nn.Module, buffers: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
