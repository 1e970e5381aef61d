"""`treadle.fit(model, example_batch, budget="8GiB")`: a model that trains within its budget, in one call."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from treadle.fitting.call_form import CallForm, ModelCall, call_of, form_of
from treadle.fitting.fitted import FittedModule
from treadle.fitting.programs import HeldPrograms, PlainForm, PlannedForm
from treadle.fitting.refusals import require_fittable
from treadle.fitting.settings import WHERE, settings_of
from treadle.fitting.summary import line_of
from treadle.fitting.verifying import verified
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError

log = logging.getLogger("treadle.fit")


def fit(
    model: nn.Module,
    example_batch: Tensor | tuple[Any, ...] | list[Any] | dict[str, Any],
    *,
    budget: str | int,
    loss: Callable[..., Any] | None = None,
    reserve: str | int = 0,
    hold_gradients: bool = False,
    time_limit: float = 60.0,
) -> FittedModule:
    """`model` as a module that trains within `budget`, to be called as the model is.

    `example_batch` is a tensor, a tuple or list of positional arguments or a dict of keywords. With `loss` a call
    computes `loss(model, *args, **kwargs)`. `budget` is a size (`8GiB`, or bytes as an int) or a share (`0.5x`) of what
    plain PyTorch needs for this batch: parameters, buffers, batch, gradients and all that a step keeps. `reserve` is
    the part of it that stays free, for the optimizer's state; what a share is taken of then has the reserve in it, so
    `0.5x` of 6 GiB with 2 GiB of reserve is 4 GiB, 2 of them for the step. hold_gradients: gradients are held from step
    to step, as in gradient accumulation. The search for a plan takes up to `time_limit` seconds, the first one on a
    machine also the time to measure the calls of the step; the next process takes the plan from the cache.

    Batches of other shapes get plans of their own. In evaluation mode and under `torch.no_grad` the model itself runs.
    Raises InputError for a model or batch that cannot be captured, InfeasibleError with the least feasible budget,
    LimitError where no plan was found in time, CheckFailed where a step under the plan is not that of plain PyTorch.
    """
    settings = settings_of(budget, reserve, hold_gradients, time_limit)
    require_fittable(model)
    if not torch.is_grad_enabled():
        raise InputError(
            "found gradients disabled, as under torch.no_grad; call treadle.fit outside of it", where=WHERE
        )
    if loss is not None and not callable(loss):
        raise InputError(f"found a {type(loss).__name__}, expected a function or None", where=f"{WHERE}: loss")
    fitted = FittedModule(model, loss, settings)
    fitted.summary = _first(fitted.programs, call_of(example_batch))
    log.info("%s: %s", fitted.programs.name, fitted.summary)
    return fitted


def _first(programs: HeldPrograms, call: ModelCall) -> str:
    """Plan the call of the example batch, and say what was done."""
    form = form_of(programs.model, call, programs.loss)
    if form.is_empty:
        raise InputError(f"found no rows in the example batch, {form.text}", where=WHERE)
    trace = _captured(programs, call, form)
    form = form_of(programs.model, call, programs.loss)  # a first call may complete a configuration
    if programs.fits(trace):
        programs.known[form] = PlainForm(fits=True)
        return programs.fits_line(trace)
    found = programs.plan(trace, programs.settings, programs.settings.time_limit_s, in_step=True)
    budget = found.plan.decisions.problem.budget_bytes
    programs.settings = replace(programs.settings, budget=budget)
    programs.known[form] = found
    kept = f"plan in {found.entry.folder}" if found.entry.folder else "the plan is not kept"
    return f"{line_of(found.plan)}; {_verified(programs, call, found)}; {kept}"


def _captured(programs: HeldPrograms, call: ModelCall, form: CallForm) -> Trace:
    try:
        return programs.capture(call)
    except InputError as error:
        if not isinstance(error.__cause__, TypeError | AttributeError):
            raise
        called = f"model({form.text})"
        if programs.loss is not None:
            called = f"loss(model, {form.text}), expected a function loss(model, *args, **kwargs)"
        raise InputError(f"{error.args[0]}; the call was {called}", where=error.where) from error


def _verified(programs: HeldPrograms, call: ModelCall, found: PlannedForm) -> str:
    if found.entry.verified(found.plan):
        return "verified when it was made"
    text = verified(found.module, call, programs.loss, found.trace, found.plan.decisions.problem.budget_bytes)
    found.entry.set_verified(found.plan)
    return text
