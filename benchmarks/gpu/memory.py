"""Memory plans made and run on the card: values, the allocator's peak against the prediction, time against PyTorch.

Each step is captured and its operators are measured on the card. Plans come from the heuristics of the memory pass,
which need no solver.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial

from benchmarks.common import Row, Table
from benchmarks.gpu.items import Outcome
from benchmarks.memory.varied import Step
from examples.models import gpt2, resnet50, unet
from treadle.planner.errors import CheckFailed, LimitError

MODELS: dict[str, Callable[[], Step]] = {
    "ResNet-50, 64 images": partial(resnet50.resnet50, batch=64),
    "GPT-2 small, 8 texts": gpt2.small,
    "U-Net, 4 images": partial(unet.unet, batch=4),
}
DRY_MODELS: dict[str, Callable[[], Step]] = {"U-Net, tiny": unet.tiny}
BUDGET = Fraction(6, 10)
"""Share of plain PyTorch's peak."""
WITHIN = 0.1
"""How far the allocator's peak may lie above the prediction: workspaces of libraries and rounding are its own."""


def check(dry: bool) -> Outcome:
    """Raises CheckFailed for a step whose values are not PyTorch's, or whose peak exceeds the prediction by more than
    WITHIN."""
    rows = [_measured(name, make, "cpu" if dry else "cuda") for name, make in (DRY_MODELS if dry else MODELS).items()]
    high = max(row["peak / predicted"] for row in rows)
    saved = ", ".join(
        f"{row['peak / PyTorch']:.2f} of the peak in {row['time / PyTorch']:.2f} of the time" for row in rows
    )
    findings = [f"{row['model']}: {finding}" for row in rows for finding in row.pop("findings")]
    findings += [
        f"{row['model']}: the peak is {row['peak / predicted']:.3f} of the prediction"
        for row in rows
        if row["peak / predicted"] > 1 + WITHIN
    ]
    if findings:
        raise CheckFailed(findings[0], tuple(findings))
    return Outcome(
        f"peak up to {high:.3f} of the prediction; of PyTorch's peak {saved}", (Table("Memory plans", rows),)
    )


def _measured(name: str, make: Callable[[], Step], device: str) -> Row:
    import torch

    from benchmarks.memory.gpu import measured, placed
    from treadle.capture.costs import with_measured
    from treadle.capture.graph import capture
    from treadle.capture.load import ModelStep, on_device
    from treadle.codegen.memory.torch_module import step_text
    from treadle.planner.graph.implementations import with_implementations
    from treadle.planner.passes.memory.check import check as check_plan
    from treadle.planner.passes.memory.extract.problem import problem_from_trace
    from treadle.planner.passes.memory.methods.quick import solve_quick
    from treadle.planner.passes.memory.planning import decide, with_budget
    from treadle.runtime.memory.verify import verify_plan
    from treadle.runtime.planned_module import PlannedModule
    from treadle.runtime.planned_step import load_step

    trace = with_measured(with_implementations(capture(on_device(make, device), name, "train")), device=device)
    problem = with_budget(problem_from_trace(trace), BUDGET)
    schedule = solve_quick(problem)
    if schedule is None:
        raise LimitError(f"{name}: no plan within {float(BUDGET)} of plain PyTorch's peak")
    decisions = decide(problem, schedule)
    if wrong := check_plan(decisions):
        raise CheckFailed(f"{name}: {wrong[0]}", tuple(wrong))
    text = step_text(decisions, trace)
    model, inputs, loss = placed(make, device)
    step = ModelStep(model, inputs, {}, loss)
    verified = verify_plan(step, trace, text, decisions.exact_peak_bytes)
    plain_peak, plain_seconds = measured(lambda: loss(model, *inputs), model, inputs)
    model.zero_grad(set_to_none=True)
    if device == "cuda":
        torch.cuda.empty_cache()
    planned = PlannedModule(model, load_step(text, trace.name))
    peak, seconds = measured(lambda: planned(*inputs), planned, inputs)
    tensors = verified.measured.get("peak_bytes")
    return {
        "model": name,
        "predicted MiB": decisions.exact_peak_bytes / 2**20,
        "tensors MiB": tensors["program"] / 2**20 if tensors else None,
        "allocator MiB": peak / 2**20,
        "peak / predicted": peak / decisions.exact_peak_bytes,
        "peak / PyTorch": peak / plain_peak,
        "time / PyTorch": seconds / plain_seconds,
        "findings": verified.findings,
    }
