"""Auto: every method that suits the request is run, and the plan whose program takes the least time is kept.

Schedules that take at most REACH times as long as the best on links and ports are priced, the best first, as the
programs that they become with their best protocol and instances; those whose program is among the best are then cut
into more pieces as long as that gains. Without a pricing, and where none can be priced, the schedule's time
decides. Equal times go to the better schedule, then to fewer messages, then to the method tried first.
Cheap methods go first, and the search ends with a schedule close to the proven bound. Methods that do not take the
request, or whose search grows exponentially with it, are skipped with a recorded reason. Work is deterministic, so the
choice is too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf

from treadle.planner.documents.tuned import Tuned
from treadle.planner.errors import CheckFailed, InfeasibleError, InputError, LimitError, TreadleError
from treadle.planner.passes.collective.algorithm import CollectiveDecisions, Transfer
from treadle.planner.passes.collective.check import check
from treadle.planner.passes.collective.decisions import decisions_of
from treadle.planner.passes.collective.guidance import not_followed
from treadle.planner.passes.collective.limits import Effort, Limits, Standing
from treadle.planner.passes.collective.measured import measured
from treadle.planner.passes.collective.pieces import in_pieces
from treadle.planner.passes.collective.pricing import Price, Pricing, unpriced
from treadle.planner.passes.collective.problem import Problem
from treadle.planner.passes.collective.symmetry import rank_maps
from treadle.planner.passes.collective.synthesis import Draft, Request
from treadle.planner.passes.collective.universal import universal_bound
from treadle.planner.search.bound import Bound
from treadle.planner.search.in_turns import Measuring, cut_short

log = logging.getLogger("treadle")

Method = Callable[[Request, Effort], Draft]

SEARCHES = ("trees", "exact", "milp")
"""Methods that take longest, least first."""
ORDER = ("greedy", "hierarchical")
"""Methods that are tried first where no time limit hurries: what they find is often close to the bound."""
CLOSE, NEAR = 0.005, 0.07
"""A plan this near to the bound, as a part of its time, ends the search: NEAR is for methods that take long."""
REACH = 2.0
"""Schedules slower than this, relative to the best, are not priced."""
DIRECT = ("all-pairs",)
"""Methods whose plans a runtime over symmetric memory may carry, in less time than any message takes: where the profile
has its costs they are priced whatever their schedule."""
PRICED_TRANSFERS = 12_000
"""Transfers of all schedules that are priced; the best one always is."""
CUT_TRANSFERS = 6_000
"""Transfers of all schedules in more pieces that are priced."""
CUT_REACH = 1.5
"""Programs slower than this, relative to the best, are not cut."""
GAIN = 0.02
"""Part of the time that more pieces must save."""
PATIENCE = 2
"""Piece counts in a row that may save less."""
SHARE = Limits(routing=4.0, scheduling=2.0)
DELIVERIES = 40_000
"""Chunks times their targets above which only the methods of ORDER are tried, if they find a plan."""
MILP_CHOICES = 40_000
"""Chunks times links above which the MILP is not tried; a tenth of it for sketches without symmetry."""


def choose(
    methods: Mapping[str, Method],
    request: Request,
    effort: Effort,
    pricing: Pricing | None = None,
    measuring: Measuring[CollectiveDecisions] | None = None,
) -> Draft:
    """The best draft of `methods`, with its price; its `options` record the schedule's ns and the program's us by
    method, why others were skipped and what of the sketch the best one did not follow. With `measuring` the best is the
    fastest measured, where the limits leave time for that.

    Raises InputError for inputs that do not fit together, and where nothing measured may be taken; the MILP's own error
    where no method finds a plan.
    """
    drafts, prices, skipped, floor = priced_candidates(methods, request, effort, pricing)
    by_schedule = sorted(drafts, key=lambda name: _by_schedule(drafts[name]))
    winner = min(by_schedule, key=lambda name: time_of(prices.get(name)))
    tuned: tuple[Tuned, ...] = ()
    if measuring is not None and not effort.clock.over():
        ranked = {name: prices[name] for name in by_schedule if name in prices}
        if (found := measured(drafts, ranked, measuring, effort.clock)) is not None:
            form, record = found
            winner, prices[form.method], tuned = form.method, form.price, (record,)
            effort.limit_fired |= cut_short(record, effort.clock)
    times = {name: price.time_us for name, price in prices.items() if price.time_us is not None}
    return replace(
        drafts[winner],
        method=f"auto: {drafts[winner].method}",
        floor=floor,
        price=prices.get(winner),
        tuned=tuned,
        options={
            "chosen": winner,
            "candidates_ns": {name: draft.makespan_ns for name, draft in drafts.items()},
            **({"candidates_us": times} if times else {}),
            "skipped": skipped,
            **not_followed(winner, drafts[winner], request.sketch),
        },
    )


def time_of(price: Price | None) -> float:
    """us, infinite where nothing was simulated."""
    return inf if price is None or price.time_us is None else price.time_us


def priced_candidates(
    methods: Mapping[str, Method], request: Request, effort: Effort, pricing: Pricing | None
) -> tuple[dict[str, Draft], dict[str, Price], dict[str, str], Bound]:
    """(drafts, prices of those that were priced, why methods were skipped, the bound over all pieces). Raises as
    `choose`."""
    drafts, skipped, floor = candidates(methods, request, effort, early=True, priced=pricing is not None)
    if pricing is None:
        return drafts, {}, skipped, floor
    prices = prices_of(drafts, request, effort, pricing)
    cut_finer(drafts, prices, request, effort, pricing)
    return drafts, prices, skipped, floor


def prices_of(drafts: Mapping[str, Draft], request: Request, effort: Effort, pricing: Pricing) -> dict[str, Price]:
    """The price of every draft within REACH, as far as PRICED_TRANSFERS and the time limit go."""
    best, *others = sorted(drafts, key=lambda name: _by_schedule(drafts[name]))
    found = {best: price_of(decisions_of(drafts[best], request.sketch.instances, None), effort, pricing)}
    left = PRICED_TRANSFERS - len(drafts[best].transfers)
    for name in others:
        draft = drafts[name]
        direct = name in DIRECT and request.hardware.transports.symmetric is not None
        if draft.makespan_ns > REACH * drafts[best].makespan_ns and not direct:
            continue
        if effort.exhausted():
            break
        if len(draft.transfers) <= left:
            left -= len(draft.transfers)
            found[name] = price_of(decisions_of(draft, request.sketch.instances, None), effort, pricing)
    return found


def price_of(decisions: CollectiveDecisions, effort: Effort, pricing: Pricing, like: Price | None = None) -> Price:
    """The price of a schedule, `unpriced` where no time is left."""
    if effort.limits.time_s is None and not effort.interrupted:
        return pricing(decisions, effort.overdue, like)
    began = effort.clock.now()
    check(decisions)
    took_s = effort.clock.now() - began
    effort.checked(took_s)
    return pricing(decisions, effort.overdue, like) if effort.can_price(took_s) else unpriced(decisions)


def cut_finer(
    drafts: dict[str, Draft], prices: dict[str, Price], request: Request, effort: Effort, pricing: Pricing
) -> None:
    """Replace drafts, and their prices, by the same in 2, 4, 8, ... pieces where the simulated program gains GAIN.

    The best programs go first; those that take over CUT_REACH times as long as the best are left as they are, and of
    equal schedules all but the first.
    """
    programs = {name: price for name, price in prices.items() if price.simulated and price.symmetric is None}
    times = {name: price.time_us for name, price in programs.items() if price.time_us is not None}
    left = CUT_TRANSFERS
    seen: set[tuple[Transfer, ...]] = set()
    for name in sorted(times, key=lambda name: times[name]):
        if times[name] > CUT_REACH * min(times.values()):
            break
        if drafts[name].transfers in seen:
            continue
        seen.add(drafts[name].transfers)
        whole, count, worse = drafts[name], 2, 0
        while worse < PATIENCE and count * len(whole.transfers) <= left and not effort.exhausted():
            draft = in_pieces(whole, request, count)
            if draft is None:
                break
            left -= len(draft.transfers)
            price = price_of(decisions_of(draft, request.sketch.instances, None), effort, pricing, prices[name])
            worse += 1
            if price.time_us is not None and price.time_us <= (1 - GAIN) * times[name]:
                require_right(draft)
                drafts[name], prices[name], times[name], worse = draft, price, price.time_us, 0
            count *= 2


def _by_schedule(draft: Draft) -> tuple[int, int]:
    return draft.makespan_ns, messages(draft)


def candidates(
    methods: Mapping[str, Method], request: Request, effort: Effort, *, early: bool = False, priced: bool = False
) -> tuple[dict[str, Draft], dict[str, str], Bound]:
    """What each method makes of the request, why the others make nothing of it, and the bound over all pieces.

    With `early` the search ends at a plan near the bound, and drafts that cannot be the best are not checked; where
    they will be `priced`, the cheap methods are all run and checked, for it is not the schedule alone that counts. A
    draft that fails its check is skipped. Raises as `choose`, and CheckFailed where no other draft is left.
    """
    problem = request.problem()
    # A sketch of another machine is refused here, though only the MILP follows its symmetries.
    symmetric = bool(list(rank_maps(request.sketch, problem.ranks, problem.per_node)))
    floor = universal_bound(
        request.collective,
        request.hardware,
        request.sketch,
        problem.input_bytes,
        request.root,
        request.demands,
    )
    deliveries = sum(len(chunk.targets) for chunk in problem.chunks)
    drafts: dict[str, Draft] = {}
    refused: dict[str, TreadleError] = {}
    skipped: dict[str, str] = {}
    best: int | None = None
    effort.reached = Standing(bound_ns=floor.time_ns)
    hurried = effort.limits.time_s is not None and deliveries <= DELIVERIES
    for name, method in sorted(methods.items(), key=lambda item: rank_of(item[0], hurried)):
        if name == "nvls" and not problem.switches:
            continue  # most machines have none: no reason to name
        reason = too_large(name, problem, symmetric)
        if deliveries > DELIVERIES and drafts and name not in ORDER:
            reason = f"{deliveries} deliveries of a chunk, more than the {DELIVERIES} it is tried on"
        close = NEAR if name in SEARCHES else 0.0 if priced and deliveries <= DELIVERIES else CLOSE
        if early and best is not None and best - floor.time_ns <= close * best:
            reason = f"a plan within {close:.1%} of the bound was there already"
        elif drafts and effort.exhausted():
            reason = "interrupted before it began" if effort.interrupted else "the time limit was over before it began"
        if reason:
            skipped[name] = reason
            continue
        log.info("method %s begins", name)
        effort.reached.method = name
        effort.report()
        beat = best if early and name in SEARCHES else None
        share = replace(effort, limits=limits_for(name, effort.limits), limit_fired=False, beat_ns=beat)
        try:
            draft = method(request, share)
            effort.limit_fired |= share.limit_fired
            if not early or best is None or draft.makespan_ns <= (REACH if priced else 1) * best:
                began = effort.clock.now()
                require_right(draft)
                effort.checked(effort.clock.now() - began)
            drafts[name] = draft
            best = draft.makespan_ns if best is None else min(best, draft.makespan_ns)
            effort.reached.best_ns = best
        except (InputError, InfeasibleError, LimitError, CheckFailed) as error:
            refused[name] = error
            skipped[name] = str(error.args[0])
    if not drafts:
        if not refused:
            raise LimitError(f"no method takes a problem of this size: {skipped}")
        raise refused.get("milp") or next(iter(refused.values()))
    return drafts, skipped, floor


def require_right(draft: Draft) -> None:
    """Raises CheckFailed with the first finding in its message."""
    findings = check(decisions_of(draft, None, None))
    if findings:
        raise CheckFailed(f"its plan failed the check, please report it: {findings[0]}", tuple(findings))


def rank_of(name: str, hurried: bool) -> tuple[int, int]:
    """Where a method stands among those to be tried; equals keep the order of the table. Templates take milliseconds:
    if `hurried` they go first, so that a time limit on a busy machine leaves none of them out."""
    if name in ORDER:
        return 1, ORDER.index(name)
    return (2, SEARCHES.index(name)) if name in SEARCHES else (0 if hurried else 1, len(ORDER))


def too_large(name: str, problem: Problem, symmetric: bool) -> str:
    """Why a method is not worth trying on `problem`, or the empty string."""
    choices = len(problem.chunks) * len(problem.links)
    most = MILP_CHOICES if symmetric else MILP_CHOICES // 10
    if name == "milp" and choices > most:
        return f"{choices} choices of a link for a chunk, more than the {most} it is tried on"
    return ""


def limits_for(name: str, limits: Limits) -> Limits:
    """A search gets a share of the work, as one of many candidates."""
    if name not in SEARCHES:
        return limits
    return replace(
        limits, routing=min(limits.routing, SHARE.routing), scheduling=min(limits.scheduling, SHARE.scheduling)
    )


def messages(draft: Draft) -> int:
    """How many messages a draft sends, what switches do among them."""
    return len({(move.src, move.dst, move.batch) for move in draft.transfers}) + len(draft.switched)
