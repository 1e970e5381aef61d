"""The search for the plan of a measured step, in this process or in a background one: no PyTorch is imported."""

from __future__ import annotations

from treadle.fitting.plan_entry import TRACE
from treadle.fitting.settings import FitSettings
from treadle.planner.documents import store
from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.documents.trace import Trace
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.extract.problem import problem_from_trace
from treadle.planner.passes.memory.planning import plan_memory, with_budget
from treadle.planner.passes.memory.search.rounds import Interrupted


def searched(trace: Trace, settings: FitSettings, seconds: float) -> Plan[MemoryDecisions]:
    """The best plan found within `seconds` and the time limit of the settings.

    Raises InfeasibleError where the budget is too small, LimitError where no plan was found in time, KeyboardInterrupt
    after Ctrl-C.
    """
    options = settings.options(seconds)
    problem = problem_from_trace(trace, 0, hold_gradients=settings.hold_gradients)
    reference = InputRef(file=TRACE, digest=store.digest(trace))
    try:
        plan = plan_memory(with_budget(problem, settings.budget, options), options=options, inputs={"trace": reference})
    except Interrupted:
        raise KeyboardInterrupt from None
    if plan.provenance.interrupted:
        raise KeyboardInterrupt
    return plan


def settled(plan: Plan[MemoryDecisions], settings: FitSettings) -> bool:
    """Whether another search within these settings would end as the one that found `plan`."""
    before = plan.provenance.options.get("time_limit_s")
    enough = isinstance(before, int | float) and before >= settings.time_limit_s
    return enough or not plan.provenance.limit_fired


def plain_bytes(trace: Trace, settings: FitSettings) -> int | None:
    """Peak of the step in plain PyTorch, with the reserve and gradients that are held; None where it is not known."""
    if trace.plain_peak_bytes is None:
        return None
    parameters = {tensor.id: tensor.bytes or 0 for tensor in trace.tensors if tensor.role == "parameter"}
    gradients = sum(parameters.get(tensor.gradient_of or "", 0) for tensor in trace.tensors)
    return trace.plain_peak_bytes + settings.reserve_bytes + gradients * settings.hold_gradients
