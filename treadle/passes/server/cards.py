"""The headline facts of a server plan."""

from __future__ import annotations

from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_time, many
from treadle.planner.passes.server.balance import bottleneck, exchanges_per_s, limits
from treadle.planner.passes.server.decisions import ServerDecisions
from treadle.report.cards import bound_card
from treadle.report.page import Card

CHECKED = (
    "a checker that shares no code with the planner counted the map of chunks, loads and times of all parts, memory "
    "and the number of workers again"
)


def server_cards(plan: Plan[ServerDecisions]) -> tuple[Card, ...]:
    """Predicted exchange with its bottleneck, workers that are carried, the bound and the check."""
    return (
        exchange_card(plan.decisions),
        workers_card(plan.decisions),
        bound_card(plan),
        Card("result", "checked, not run", None, CHECKED),
    )


def exchange_card(decisions: ServerDecisions) -> Card:
    """The exchange of the whole model, its slowest part, and how much faster the next kind of part is."""
    rate = exchanges_per_s(decisions.problem.workers, decisions.time_ns)
    note = f"predicted: {rate:.4g} exchanges/s of all workers together; {_bottleneck(decisions)}"
    if compute := decisions.problem.compute_ns:
        more = format_time(decisions.iteration_ns - compute)
        note += f"; a step takes {format_time(decisions.iteration_ns)}, {more} more than its computation"
    return Card("exchange time", format_time(decisions.time_ns), None, note)


def _bottleneck(decisions: ServerDecisions) -> str:
    slowest = bottleneck(decisions)
    if slowest is None:
        return "no part has a rate or a cost"
    others = [each for each in limits(decisions) if each.kind != "computation" and each.part is not slowest]
    after = f", then {others[0].part.part} at {others[0].headroom:.2f}x" if others else ""
    return f"bottleneck {slowest.part}{after}"


def workers_card(decisions: ServerDecisions) -> Card:
    """How many workers the servers carry."""
    most, workers = decisions.most_workers, decisions.problem.workers
    value = "any number" if most is None else f"up to {many(most, 'worker')}" if most else "none"
    note = f"before a part of a server is slower than the slowest of a worker; planned for {workers}"
    return Card("servers carry", value, most is None or most >= workers, note)
