"""From hardware, sketch and size to a checked collective plan: one method, then the bound, the check and the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from msgspec import structs

from treadle.planner.documents.collective import Collective, Demand, Protocol
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.pattern import Pattern
from treadle.planner.documents.plan import InputRef, Plan, Provenance
from treadle.planner.documents.sketch import Sketch
from treadle.planner.documents.store import digest
from treadle.planner.errors import InputError
from treadle.planner.passes.collective import auto, exact, greedy, hierarchical, milp, trees
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.collective.bound import lower_bound, sentence
from treadle.planner.passes.collective.check import check
from treadle.planner.passes.collective.decisions import decisions_of
from treadle.planner.passes.collective.draft import Draft, Request
from treadle.planner.passes.collective.guidance import not_followed
from treadle.planner.passes.collective.limits import Effort, Limits, OnProgress
from treadle.planner.passes.collective.pricing import Price, Pricing
from treadle.planner.passes.collective.templates import (
    all_pairs,
    binomial,
    double_tree,
    halving_doubling,
    recursive_doubling,
    ring,
    two_level,
)
from treadle.planner.passes.collective.universal import universal_bound
from treadle.planner.search.bound import Bound
from treadle.planner.search.certified import certified
from treadle.planner.search.clock import Clock
from treadle.planner.solver.interrupt import stop_on_sigint
from treadle.planner.version import TOOL

METHODS: dict[str, auto.Method] = {
    "exact": exact.synthesize,
    "milp": milp.synthesize,
    "recursive-doubling": recursive_doubling.synthesize,
    "binomial": binomial.synthesize,
    "all-pairs": all_pairs.synthesize,
    "halving-doubling": halving_doubling.synthesize,
    "two-level": two_level.synthesize,
    "double-tree": double_tree.synthesize,
    "ring": ring.synthesize,
    "greedy": greedy.synthesize,
    "hierarchical": hierarchical.synthesize,
    "trees": trees.synthesize,
}
"""Every method that `auto` compares, by its name on the command line."""

DEFAULT_LIMITS = Limits()


def plan_collective(
    collective: Collective,
    hardware: Hardware,
    sketch: Sketch,
    *,
    size_bytes: int | None = None,
    root: int = 0,
    pattern: Pattern | None = None,
    method: str = "milp",
    instances: int | None = None,
    protocol: Protocol | Literal["auto"] | None = None,
    limits: Limits = DEFAULT_LIMITS,
    clock: Clock | None = None,
    pricing: Pricing | None = None,
    on_progress: OnProgress | None = None,
    hardware_file: str | None = None,
    sketch_file: str | None = None,
    pattern_file: str | None = None,
) -> Plan[CollectiveDecisions]:
    """The best plan that `method` finds for `collective` with `size_bytes` of input on every rank (default: the
    sketch's size, or the one that the pattern's unit gives).

    With `pricing` the plan has the protocol and instances that it prices lowest and predicts the time of that program,
    and `auto` chooses by it; else by the schedule on links and ports.

    `on_progress` hears the stage and the solver's progress in ns. `hardware_file`, `sketch_file` and `pattern_file`
    are recorded as names of the inputs. The limit of `limits` counts from when `clock`, that of the command,
    began, else from now. Raises InputError for inputs that do not fit together, InfeasibleError when the sketch leaves
    no routing, LimitError when the limits ended the search without one, CheckFailed should the result be wrong.
    """
    demands, size_bytes = asked_of(pattern, collective, hardware, size_bytes, pattern_file)
    effort = Effort(limits.within(sketch), on_progress, clock or Clock())
    request = Request(collective, hardware, sketch, size_bytes, root, demands)
    with stop_on_sigint(effort.stop):
        draft = synthesize(method, request, effort, pricing)
        decisions = decisions_of(draft, instances or sketch.instances, protocol)
        if pricing is not None and draft.price is None:
            draft = replace(draft, price=auto.price_of(decisions, effort, pricing))
    files = {"hardware": hardware_file, "sketch": sketch_file, "pattern": pattern_file}
    inputs = references(hardware, sketch, pattern, files)
    return plan_of(draft, decisions, request, inputs, effort)


def asked_of(
    pattern: Pattern | None, collective: Collective, hardware: Hardware, size_bytes: int | None, file: str | None
) -> tuple[tuple[Demand, ...] | None, int | None]:
    """The demands of an irregular collective, and the size where the pattern fixes it. Raises InputError."""
    if pattern is None:
        return None, size_bytes
    pattern.require(collective, hardware.ranks, file or pattern.name)
    fixed = pattern.input_bytes()
    if fixed is not None and size_bytes not in (None, fixed):
        raise InputError(f"found {size_bytes} bytes, expected {fixed}: the unit of the pattern says so", where="--size")
    return pattern.demands, fixed or size_bytes


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
    draft: Draft, decisions: CollectiveDecisions, request: Request, inputs: dict[str, InputRef], effort: Effort
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
        argument=sentence(bound),
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
            limit_fired=effort.limit_fired,
            interrupted=effort.interrupted,
        ),
    )


def in_form(decisions: CollectiveDecisions, price: Price | None) -> CollectiveDecisions:
    """In the protocol, instances, order and form of the price, if any."""
    if price is None:
        return decisions
    form = {"protocol": price.protocol, "instances": price.instances, "ordered": price.ordered, "fused": price.fused}
    return structs.replace(decisions, **form)


def require_method(method: str) -> None:
    """Raises InputError for a name that is neither "auto" nor one of METHODS."""
    if method != "auto" and method not in METHODS:
        raise InputError(f"found {method!r}, expected auto or one of {', '.join(sorted(METHODS))}", where="--method")


def synthesize(method: str, request: Request, effort: Effort, pricing: Pricing | None = None) -> Draft:
    """What `method`, one of METHODS or "auto", makes of the request; `auto` chooses by `pricing`. Raises InputError for
    another name."""
    require_method(method)
    if method == "auto":
        return auto.choose(METHODS, request, effort, pricing)
    draft = METHODS[method](request, effort)
    return replace(draft, options={**draft.options, **not_followed(method, draft, request.sketch)})


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
