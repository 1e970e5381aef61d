"""Train a model under its memory plan: `treadle.apply(model, plan)`.

What runs is the generated text itself (`treadle.codegen.memory.torch_module`), in a
`treadle.runtime.planned_module.PlannedModule`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from treadle.capture.load import build_step, load_function
from treadle.codegen.memory.torch_module import FILE_NAME, generate
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.runtime.planned_module import PlannedModule
from treadle.runtime.planned_step import load_step
from treadle.runtime.sources import plan_and_trace
from treadle.runtime.strides import copied
from treadle.runtime.wrappers import require_unwrapped

CALLER = "treadle.apply"


def apply(
    model: nn.Module, plan: Plan | Path | str, trace: Trace | Path | str | None = None, *, verify: bool = False
) -> PlannedModule:
    """`model` as a module that trains under `plan`, to be called like the step the plan's trace was captured from.

    Called with the step's arguments, `planned(**batch)` where the step takes keywords, it returns what the step
    returns: the loss where one was captured. `backward`,
    optimizers, gradient accumulation, `state_dict`, copies, `torch.save` and DistributedDataParallel work as with
    `model`, which it wraps. Hooks on modules inside the model do not run; numbers and words among what the step returns
    stay those of the capture.
    `plan` is a plan or its file. `trace` defaults to the file that the plan names, next to the plan's own file. With
    `verify` a copy of the model takes one step under the plan and one under plain PyTorch, on the inputs and with the
    loss of the function that was captured, which has to be importable; `verified` of the result says what was seen.

    Raises CheckFailed for a plan that fails its check, and for a step whose values are not those of plain PyTorch or
    whose peak exceeds the budget; InputError for a plan of another pass, when the trace is not the one the plan was
    made from, when the model's parameters and buffers differ from the trace's, or when the plan divides by a scale that
    is near 0 now. Calls raise InputError for inputs and modes that the plan does not cover.
    """
    if not isinstance(model, nn.Module):
        raise InputError(
            f"found a model of type {type(model).__name__}, expected a torch.nn.Module",
            where=str(plan) if isinstance(plan, str | Path) else CALLER,
        )
    require_unwrapped(model, CALLER)
    document, known = plan_and_trace(plan, trace, CALLER, MemoryDecisions)
    text = generate(document, known)[FILE_NAME]
    planned = PlannedModule(model, load_step(text, known.name))
    if verify:
        planned.verified = _verified(model, known, text, document.decisions.problem.budget_bytes)
    return planned


def _verified(model: nn.Module, trace: Trace, text: str, budget_bytes: int) -> str:
    from treadle.runtime.memory.verify import verify_plan

    if trace.entry is None:
        text = "found no MODULE:FUNCTION to take inputs and loss from, expected a trace of `treadle trace capture`"
        raise InputError(text, where=trace.name, path="$.entry")
    function = load_function(trace.entry)
    device = next((leaf.device for leaf in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    step = build_step(function, trace.entry)
    placed = [copied(tensor, device).requires_grad_(tensor.requires_grad) for tensor in step.inputs]
    found = verify_plan(step.with_inputs(placed)._replace(model=model), trace, text, budget_bytes)
    if found.findings:
        raise CheckFailed(f"{trace.name}: the plan is not verified: {found.findings[0]}", found.findings)
    return found.line
