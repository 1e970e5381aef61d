"""One step under a program compared with one of plain PyTorch: values, strides, peak and time.

A capture is verified by the program that keeps everything (the forward pass only: call by call), a plan by its own.
Fake tensors made the capture, so the strides of real results are compared with its too: other ones cost copies that the
plan does not count.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from treadle.capture.load import ModelStep, autocast_to
from treadle.capture.operator_calls import call
from treadle.codegen.memory.torch_module import step_text
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.documents.trace import Op, Trace
from treadle.planner.errors import InputError
from treadle.planner.graph.index import Graph
from treadle.planner.passes.memory.extract.problem import problem_from_trace
from treadle.planner.passes.memory.lower import store_all
from treadle.planner.passes.memory.planning import decide
from treadle.runtime.comparison import difference, largest, relative_tolerance, value_finding
from treadle.runtime.followers import plain
from treadle.runtime.meter import Meter
from treadle.runtime.planned_module import PlannedModule
from treadle.runtime.planned_step import load_step
from treadle.runtime.rounding import wrong_gradients
from treadle.runtime.strides import copied, exact
from treadle.runtime.training import TIMED_STEPS
from treadle.runtime.values import differentiated, tensors_of

SEED = 0
NO_LIMIT = 2**62

Call = Callable[..., Any]
Program = Callable[[nn.Module], Call]


class Verified(NamedTuple):
    """`line` says in one line what was compared, `findings` name what does not hold, `measured` are its numbers."""

    line: str
    findings: tuple[str, ...]
    measured: dict[str, Any]


def verify_capture(step: ModelStep, trace: Trace) -> Verified:
    """`trace`, without an optimizer's ops, compared with the step that it was captured from."""
    if trace.mode == "infer":
        return _verify(step, trace, lambda model: partial(_forward, trace, model), None, "the captured calls")
    timed = replace(trace, ops=tuple(replace(op, time_ns=0) for op in trace.ops))
    problem = problem_from_trace(timed, NO_LIMIT)
    decisions = decide(problem, store_all(problem))
    text = step_text(decisions, timed)
    return _verify(step, trace, _planned(text, trace), decisions.exact_peak_bytes, "the capture")


def verify_plan(step: ModelStep, trace: Trace, text: str, budget_bytes: int) -> Verified:
    """The generated `text` of a plan compared with the step that its trace was captured from."""
    return _verify(step, trace, _planned(text, trace), budget_bytes, "the plan")


def _planned(text: str, trace: Trace) -> Program:
    return lambda model: PlannedModule(model, load_step(text, trace.name))


class _Side:
    """A model of its own, and one step of it."""

    def __init__(self, step: ModelStep, trace: Trace, program: Program) -> None:
        self.model = copy.deepcopy(step.model)
        self.inputs = [copied(x).requires_grad_(x.requires_grad) for x in step.inputs]
        self.batch = step.with_inputs(self.inputs)
        self.trace = trace
        device = next((leaf.device.type for _, leaf in self._leaves()), "cpu")
        self.autocast = autocast_to(trace.autocast, device)
        self.call = program(self.model)
        self.clear()
        with Meter(self.model, self.inputs) as meter:
            outputs = self.step()
        self.outputs = [leaf.detach().clone() for leaf in tensors_of(outputs)]
        self.peak_bytes = meter.peak_bytes
        self.gradients = {name: leaf.grad for name, leaf in self._leaves()}
        self.buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}

    def _leaves(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.model.named_parameters()
        yield from ((f"input {index}", tensor) for index, tensor in enumerate(self.inputs))

    def clear(self) -> None:
        for _, leaf in self._leaves():
            leaf.grad = None

    def step(self) -> Any:
        """Outputs of a step whose backward pass is done."""
        training = self.trace.mode == "train"
        torch.manual_seed(SEED)
        off: AbstractContextManager[Any] = nullcontext() if training else torch.no_grad()
        with off, self.autocast:
            outputs = self.call(*self.batch.args, **self.batch.kwargs)
        if training:
            backward(outputs)
        return outputs

    def seconds(self) -> float:
        self.clear()
        start = time.perf_counter()
        self.step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - start


def backward(outputs: Any) -> None:
    """Start from gradients of 1, -1/2 and so on, which need no memory but their own and are exact in every type."""
    leaves = differentiated(outputs)
    gradients = [torch.ones(leaf.shape, dtype=leaf.dtype, device=leaf.device) for leaf in leaves]
    for gradient in gradients:
        gradient.view(-1)[1::2].mul_(-0.5)
        gradient.view(-1)[2::3].mul_(0.25)
    torch.autograd.backward(leaves, gradients)


def _verify(step: ModelStep, trace: Trace, program: Program, promised: int | None, name: str) -> Verified:
    if trace.mode == "infer":
        step.model.eval()
    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices=devices):
        try:
            eager = _Side(step, trace, lambda model: plain(model, step.loss).call)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            text = f"plain PyTorch's step raised {type(error).__name__}: {_line(error)}"
            raise InputError(text, where=trace.name) from error
        try:
            other = _Side(step, trace, program)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            finding = f"{name} raised {type(error).__name__}: {_line(error)}"
            return Verified(finding, (finding,), {"findings": [finding]})
        findings, gap = _value_findings(eager, other, step)
        differ = bool(findings)
        if promised is not None and other.peak_bytes > promised:
            findings.append(
                f"the peak of {format_bytes(other.peak_bytes)} exceeds the promised {format_bytes(promised)}"
            )
        moved = list(_other_strides(trace, copy.deepcopy(step.model), step.inputs))
        rows = [(eager.seconds(), other.seconds()) for _ in range(TIMED_STEPS)]
    seconds = [statistics.median(times) for times in zip(*rows, strict=True)]
    present = sum(gradient is not None for gradient in eager.gradients.values())
    counts = {"output": len(eager.outputs), "gradient": present, "buffer": len(eager.buffers)}
    kinds = ", ".join(f"{count} {word}{'s' * (count > 1)}" for word, count in counts.items() if count)
    values = "equal to the last bit" if gap == 0 else f"equal within {gap:.3g} of the largest"
    layout = f"{len(moved)} in other strides than captured, first {moved[0]}" if moved else "strides as captured"
    bound = "" if promised is None else f" ({format_bytes(promised)} promised)"
    line = (
        f"{name} and plain PyTorch: {kinds} {'differ' if differ else values}; {layout}; "
        f"peak {format_bytes(other.peak_bytes)}{bound} and {format_bytes(eager.peak_bytes)}; "
        f"step {seconds[1] * 1e3:.1f} and {seconds[0] * 1e3:.1f} ms"
    )
    measured = {
        "findings": findings,
        "largest_difference": gap,
        "other_strides": moved,
        "peak_bytes": {"plain": eager.peak_bytes, "program": other.peak_bytes, "promised": promised},
        "step_seconds": {"plain": seconds[0], "program": seconds[1]},
    }
    return Verified(line, tuple(findings), measured)


def _value_findings(eager: _Side, other: _Side, step: ModelStep) -> tuple[list[str], float]:
    """A sentence for each value that differs beyond rounding, and the largest relative difference of all."""
    tolerance = relative_tolerance(eager.model.parameters(), eager.trace.narrow)
    findings: list[str] = []
    gaps = [0.0]
    together = enumerate(zip(eager.outputs, other.outputs, strict=True))
    outputs = [(f"output {index}", a, b) for index, (a, b) in together]
    buffers = [(f"buffer {name!r}", a, other.buffers[name]) for name, a in eager.buffers.items()]
    for what, a, b in (*outputs, *buffers):
        gaps.append(_relative(a, b, largest(a)))
        if finding := value_finding(what, a, b, tolerance):
            findings.append(finding)
    scale = max((largest(a) for a in eager.gradients.values() if a is not None), default=0.0)
    pairs = {name: (a, other.gradients[name]) for name, a in eager.gradients.items()}
    gaps += [_relative(a, b, scale) for a, b in pairs.values()]
    plain_step, autocast = step._replace(model=eager.model), eager.autocast
    wrong, _ = wrong_gradients(pairs, plain_step, SEED, backward, autocast, narrow=eager.trace.narrow)
    findings += [_gradient_finding(f"the gradient of {name!r}", *pairs[name]) for name in wrong]
    return findings, max(gaps)


def _gradient_finding(what: str, a: Tensor | None, b: Tensor | None) -> str:
    if a is None or b is None:
        return f"{what} is {'None' if b is None else 'there and None in plain PyTorch'}"
    return f"{what} differs from plain PyTorch's by {difference(a, b):.3g}, its largest is {largest(a):.3g}"


def _relative(a: Tensor | None, b: Tensor | None, scale: float) -> float:
    gap = difference(a, b)
    return gap / scale if gap and scale else gap


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def _forward(trace: Trace, model: nn.Module, *inputs: Tensor) -> list[Tensor]:
    """Outputs of an inference step, call by call."""
    values = _placed(trace, model, inputs)
    for _ in _calls(trace, values):
        pass
    buffers = dict(model.named_buffers())
    names = {tensor.id: tensor.name for tensor in trace.tensors}
    for buffer, value in trace.updates:
        buffers[str(names[buffer])].copy_(values[value])
    return [values[output] for output in trace.outputs]


def _other_strides(trace: Trace, model: nn.Module, inputs: Sequence[Tensor]) -> Iterator[str]:
    """The results of kernels whose strides are not those of the capture, each from arguments in captured strides."""
    tensors = {tensor.id: tensor for tensor in trace.tensors}
    graph = Graph(trace)
    values = _placed(trace, model, inputs)
    for op, results in _calls(trace, values):
        for key, result in results:
            stride = tensors[key].stride
            if graph.is_view(op) or stride is None or result.is_sparse:
                continue
            if not _alike(result, stride):
                yield f"{key} ({op.target}): {list(result.stride())}, captured {list(stride)}"
                values[key] = exact(result, stride)


def _alike(tensor: Tensor, stride: Sequence[int]) -> bool:
    return not tensor.numel() or all(
        size <= 1 or a == b for size, a, b in zip(tensor.shape, tensor.stride(), stride, strict=True)
    )


def _placed(trace: Trace, model: nn.Module, inputs: Iterable[Tensor]) -> dict[str, Tensor]:
    """Parameters, buffers, inputs and tangents of ones, by the trace's ids."""
    named: dict[str | None, Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    values = {key: tensor.detach() for key, tensor in zip(trace.inputs, inputs, strict=True)}
    values |= {t.id: named[t.name].detach() for t in trace.tensors if t.role in ("parameter", "buffer")}
    device = next((value.device for value in values.values()), torch.device("cpu"))
    for tensor in trace.tensors:
        if tensor.role == "tangent":
            dtype, shape, stride = getattr(torch, str(tensor.dtype)), tensor.shape or (), tensor.stride or ()
            values[tensor.id] = torch.empty_strided(shape, stride, dtype=dtype, device=device).fill_(1)
    return values


def _calls(trace: Trace, values: dict[str, Tensor]) -> Iterator[tuple[Op, list[tuple[str, Tensor]]]]:
    """Run each op and put its results into `values`, from which each goes after its last read."""
    kept = {*trace.outputs, *(value for _, value in trace.updates)}
    last: Mapping[str, Op] = {key: op for op in trace.ops for key in (*op.inputs, *op.outputs) if key is not None}
    with torch.no_grad():
        for op in trace.ops:
            found = zip(op.outputs, call(op, values), strict=True)
            results = [(key, result) for key, result in found if key is not None and result is not None]
            values.update(results)
            yield op, results
            for key in (*op.inputs, *op.outputs):
                if key is not None and last[key] is op and key not in kept:
                    values.pop(key, None)
