"""The faster plan of several allocators, found one after the other within one time limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace as with_options
from typing import Any

from msgspec.structs import replace

from planner.errors import InfeasibleError, LimitError
from planner.plan import Plan
from planner.swap.bound import EXACT
from planner.swap.decisions import Allocator, SwapDecisions
from planner.swap.planning import Memory, SwapOptions, plan_swap_problem, prepared
from planner.swap.problem import SwapProblem

BOTH: tuple[Allocator, ...] = ("pool", "offset")
"""What the runtime can carry. A pool loses memory to its classes, an arena to its holes; neither always loses less."""


def plan_swap_allocators(
    problem: SwapProblem,
    allocators: Sequence[Allocator],
    *,
    options: SwapOptions,
    memory: Memory | None = None,
    on_plan: Callable[[Plan], None] | None = None,
    **others: Any,
) -> Plan:
    """The fastest plan of the `allocators`, the first of equals; each gets an equal share of the time that is left.

    An allocator that cannot run the problem, or that can only lose, costs no time. Arguments and errors are those of
    `plan_swap_problem`; where no allocator has a plan, the error is that of the last one.
    """
    ends = time.monotonic() + options.time_limit_s
    problem = prepared(problem, memory)
    best: Plan | None = None
    failure: InfeasibleError | LimitError | None = None
    fired = interrupted = False

    def offer(plan: Plan) -> None:
        if on_plan is not None and (best is None or time_of(plan) < time_of(best)):
            on_plan(plan)

    for place, allocator in enumerate(allocators):
        if best is not None and time.monotonic() > ends:
            fired = True
            break
        left_s = max(0.1, ends - time.monotonic()) / (len(allocators) - place)
        chosen = with_options(options, allocator=allocator, time_limit_s=left_s)
        try:
            plan = plan_swap_problem(problem, options=chosen, on_plan=offer, **others)
        except (InfeasibleError, LimitError) as error:
            failure = error
            continue
        fired, interrupted = fired or plan.provenance.limit_fired, plan.provenance.interrupted
        if best is None or time_of(plan) < time_of(best):
            best = plan
        if interrupted or (best.certificate.optimal and best.certificate.scope not in EXACT.values()):
            break
    if best is None:
        assert failure is not None
        raise failure
    made = {**best.provenance.options, "allocators": list(allocators), "time_limit_s": options.time_limit_s}
    return replace(best, provenance=replace(best.provenance, options=made, limit_fired=fired, interrupted=interrupted))


def time_of(plan: Plan) -> int:
    """Nanoseconds of one iteration under a swap plan."""
    assert isinstance(plan.decisions, SwapDecisions)
    return plan.decisions.time_ns
