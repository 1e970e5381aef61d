"""From hardware, sketch and size to a checked collective plan: one method, then the bound, the check and the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from treadle.planner.documents.collective import Collective, Protocol
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.nearest import unknown
from treadle.planner.documents.pattern import Pattern
from treadle.planner.documents.plan import InputRef, Plan, Provenance
from treadle.planner.documents.sketch import Sketch
from treadle.planner.documents.store import digest
from treadle.planner.errors import InputError
from treadle.planner.passes.collective import auto, exact, greedy, hierarchical, milp, nvls, trees
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.collective.bound import lower_bound, sentence
from treadle.planner.passes.collective.check import check
from treadle.planner.passes.collective.decisions import decisions_of
from treadle.planner.passes.collective.guidance import not_followed
from treadle.planner.passes.collective.limits import Effort, Limits
from treadle.planner.passes.collective.measured import measured
from treadle.planner.passes.collective.pricing import Pricing, in_form
from treadle.planner.passes.collective.renumbering import in_either_order
from treadle.planner.passes.collective.synthesis import Draft, Request
from treadle.planner.passes.collective.templates import (
    all_pairs,
    binomial,
    double_tree,
    halving_doubling,
    recursive_doubling,
    ring,
    two_level,
    two_level_masters,
)
from treadle.planner.passes.collective.universal import universal_bound
from treadle.planner.search.bound import Bound
from treadle.planner.search.certified import certified
from treadle.planner.search.clock import Clock
from treadle.planner.search.in_turns import Measuring, cut_short
from treadle.planner.solver import Progress
from treadle.planner.version import TOOL

METHODS: dict[str, auto.Method] = {
    "nvls": nvls.synthesize,
    "exact": exact.synthesize,
    "milp": milp.synthesize,
    "recursive-doubling": in_either_order(recursive_doubling.synthesize),
    "binomial": in_either_order(binomial.synthesize),
    "all-pairs": in_either_order(all_pairs.synthesize),
    "halving-doubling": halving_doubling.synthesize,
    "two-level": in_either_order(two_level.synthesize),
    "two-level-masters": two_level_masters.synthesize,
    "double-tree": in_either_order(double_tree.synthesize),
    "ring": in_either_order(ring.synthesize),
    "greedy": in_either_order(greedy.synthesize),
    "hierarchical": in_either_order(hierarchical.synthesize),
    "trees": trees.synthesize,
}
"""Every method that `auto` compares, by its name on the command line."""

DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class CollectiveOptions:
    """`method` is "auto" or one of METHODS. With `pricing` a plan has the protocol and instances that it prices lowest
    and predicts the time of that program, and `auto` chooses by it; else by the schedule on links and ports."""

    method: str = "milp"
    instances: int | None = None
    protocol: Protocol | Literal["auto"] | None = None
    limits: Limits = DEFAULT_LIMITS
    pricing: Pricing | None = None
    in_switch: bool = True
    """Whether `auto` may leave the work to switches, which only some runtimes can."""
    measuring: Measuring[CollectiveDecisions] | None = None
    """With `pricing`: how the programs of the lowest prices are measured, of which the fastest is taken."""


DEFAULTS = CollectiveOptions()


def plan_collective(
    problem: Request,
    *,
    options: CollectiveOptions = DEFAULTS,
    clock: Clock | None = None,
    inputs: Mapping[str, InputRef] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_plan: Callable[[Plan[CollectiveDecisions]], None] | None = None,
) -> Plan[CollectiveDecisions]:
    """The best plan that the method of the options finds, checked.

    Raises InputError for a method or sizes that do not fit the problem or where nothing measured may be taken,
    InfeasibleError when the sketch leaves no routing, LimitError when the limits ended the search without a plan.
    """
    effort = Effort(options.limits.within(problem.sketch), on_progress, clock or Clock())
    with effort.clock.listening():
        draft = synthesize(
            options.method, problem, effort, options.pricing, options.measuring, in_switch=options.in_switch
        )
        decisions = decisions_of(draft, options.instances or problem.sketch.instances, options.protocol)
        if options.pricing is not None and draft.price is None:
            price = auto.price_of(decisions, effort, options.pricing)
            draft = replace(draft, price=price)
            if options.measuring is not None and not effort.clock.over():
                name = options.method
                found = measured({name: draft}, {name: price}, options.measuring, effort.clock)
                if found is not None:
                    draft = replace(draft, price=found[0].price, tuned=found[1:])
                    effort.limit_fired |= cut_short(found[1], effort.clock)
    plan = plan_of(draft, decisions, problem, inputs or {}, effort)
    if on_plan is not None:
        on_plan(plan)
    return plan


def make_request(
    collective: Collective,
    hardware: Hardware,
    sketch: Sketch,
    size_bytes: int | None = None,
    root: int = 0,
    pattern: Pattern | None = None,
    pattern_file: str | None = None,
) -> Request:
    """The problem of these inputs; the unit of a pattern fixes the size. Raises InputError if they do not fit."""
    if pattern is None:
        return Request(collective, hardware, sketch, size_bytes, root)
    pattern.require(collective, hardware.ranks, pattern_file or pattern.name)
    fixed = pattern.input_bytes()
    if fixed is not None and size_bytes not in (None, fixed):
        raise InputError(f"found {size_bytes} bytes, expected {fixed}: the unit of the pattern says so", where="--size")
    return Request(collective, hardware, sketch, fixed or size_bytes, root, pattern.demands)


def references(
    hardware: Hardware, sketch: Sketch, pattern: Pattern | None, files: Mapping[str, str | None]
) -> dict[str, InputRef]:
    """The inputs as a plan records them; `files` are their names by role."""
    found: dict[str, Hardware | Sketch | Pattern] = {"hardware": hardware, "sketch": sketch}
    if pattern is not None:
        found["pattern"] = pattern
    return {
        role: InputRef(file=files.get(role) or document.name, digest=digest(document))
        for role, document in found.items()
    }


def plan_of(
    draft: Draft, decisions: CollectiveDecisions, request: Request, inputs: Mapping[str, InputRef], effort: Effort
) -> Plan[CollectiveDecisions]:
    """The draft with its bound and its certificate, in the protocol, instances and order of its price if it has one.
    Raises CheckFailed should the decisions be wrong."""
    price = draft.price
    decisions = in_form(decisions, price)
    bound = bound_of(draft, request)
    if draft.bound is not None and draft.bound.time_ns > bound.time_ns:
        bound = draft.bound
    return certified(
        decisions,
        time_ns=decisions.makespan_ns,
        predicted_us=None if price is None else price.time_us,
        unsimulated=None if price is None or price.time_us is not None else price.transport["by_size"],
        bound=bound,
        sentence=sentence,
        check=check,
        inputs=inputs,
        provenance=Provenance(
            tool=TOOL,
            method=draft.method,
            options={
                "routing_limit": effort.limits.routing,
                "scheduling_limit": effort.limits.scheduling,
                **({} if effort.limits.time_s is None else {"time_limit_s": effort.limits.time_s}),
                **draft.options,
                **({} if price is None else {"transport": price.transport}),
            },
            solver_status=draft.status,
            tuned=draft.tuned,
            limit_fired=effort.limit_fired,
            interrupted=effort.interrupted,
        ),
    )


def require_method(method: str) -> None:
    """Raises InputError for a name that is neither "auto" nor one of METHODS."""
    if method != "auto" and method not in METHODS:
        raise InputError(unknown(method, ["auto", *sorted(METHODS)]), where="--method")


def synthesize(
    method: str,
    request: Request,
    effort: Effort,
    pricing: Pricing | None = None,
    measuring: Measuring[CollectiveDecisions] | None = None,
    *,
    in_switch: bool = True,
) -> Draft:
    """What `method`, one of METHODS or "auto", makes of the request; `auto` chooses by `pricing` and `measuring`, and
    leaves the work to switches only where it may (`in_switch`). Raises InputError for another name."""
    require_method(method)
    if method == "auto":
        return auto.choose(methods_for(request.collective, in_switch=in_switch), request, effort, pricing, measuring)
    effort.reached.method = method
    draft = METHODS[method](request, effort)
    return replace(draft, options={**draft.options, **not_followed(method, draft, request.sketch)})


def methods_for(collective: Collective, *, in_switch: bool = True) -> dict[str, auto.Method]:
    """What `auto` tries: no runtime does a reduce in the switch."""
    switches = in_switch and collective != "reduce"
    return {name: made_by for name, made_by in METHODS.items() if switches or name != "nvls"}


def bound_of(draft: Draft, request: Request) -> Bound:
    """Over the routes and orders of the draft's pieces where it had no choice of them; else, or where it is met, that
    over all pieces as well."""
    met = draft.floor is not None and draft.floor.time_ns == draft.makespan_ns
    if draft.fixed and not met:
        return lower_bound(draft.problem)
    if draft.floor is not None:
        return draft.floor
    size, demands = draft.problem.input_bytes, draft.problem.demands
    return universal_bound(request.collective, request.hardware, request.sketch, size, request.root, demands)
