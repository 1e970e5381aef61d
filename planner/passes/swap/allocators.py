"""The faster plan of several allocators, found one after the other within one time limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace as with_options
from typing import Any

from msgspec.structs import replace

from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InfeasibleError, LimitError
from treadle.planner.passes.swap.bound import EXACT
from treadle.planner.passes.swap.decisions import Allocator, SwapDecisions
from treadle.planner.passes.swap.planning import Memory, SwapOptions, plan_swap_problem, prepared
from treadle.planner.passes.swap.problem import SwapProblem
from treadle.planner.search.clock import Clock

BOTH: tuple[Allocator, ...] = ("pool", "offset")
"""What the runtime can carry. A pool loses memory to its classes, an arena to its holes; neither always loses less."""


def plan_swap_allocators(
    problem: SwapProblem,
    allocators: Sequence[Allocator],
    *,
    options: SwapOptions,
    clock: Clock | None = None,
    memory: Memory | None = None,
    on_plan: Callable[[Plan[SwapDecisions]], None] | None = None,
    **others: Any,
) -> Plan[SwapDecisions]:
    """The fastest plan of the `allocators`, the first of equals; each gets an equal share of the time that is left.

    An allocator that cannot run the problem, or that can only lose, costs no time, and none is begun after Ctrl-C, nor
    when less time is left than it took to the first plan.
    Arguments and errors are those of `plan_swap_problem`; where no allocator has a plan, the error is that of the last
    one.
    """
    clock = clock or Clock.of(options.time_limit_s)
    with clock.listening():
        return _fastest(prepared(problem, memory), allocators, options, clock, on_plan, others)


def _fastest(
    problem: SwapProblem,
    allocators: Sequence[Allocator],
    options: SwapOptions,
    clock: Clock,
    on_plan: Callable[[Plan[SwapDecisions]], None] | None,
    others: dict[str, Any],
) -> Plan[SwapDecisions]:
    best: Plan[SwapDecisions] | None = None
    failure: InfeasibleError | LimitError | None = None
    fired = False

    needed_s, began = 0.0, clock.now()

    def offer(plan: Plan[SwapDecisions]) -> None:
        nonlocal needed_s
        if on_plan is not None and (best is None or time_of(plan) < time_of(best)):
            on_plan(plan)
        needed_s = needed_s or clock.now() - began

    for place, allocator in enumerate(allocators):
        if best is not None and clock.left_s <= needed_s:
            fired = True
            break
        share = clock.share(len(allocators) - place)
        chosen = with_options(options, allocator=allocator)
        try:
            plan = plan_swap_problem(problem, options=chosen, clock=share, on_plan=offer, **others)
        except (InfeasibleError, LimitError) as error:
            failure = error
            if clock.stop.is_set():
                break
            continue
        fired = fired or plan.provenance.limit_fired
        if best is None or time_of(plan) < time_of(best):
            best = plan
        if clock.stop.is_set() or (best.certificate.optimal and best.certificate.scope not in EXACT.values()):
            break
    if best is None:
        assert failure is not None
        raise failure
    made = {**best.provenance.options, "allocators": list(allocators)}
    interrupted = clock.stop.is_set()
    return replace(best, provenance=replace(best.provenance, options=made, limit_fired=fired, interrupted=interrupted))


def time_of(plan: Plan[SwapDecisions]) -> int:
    """Nanoseconds of one iteration under a swap plan."""
    return plan.decisions.time_ns
