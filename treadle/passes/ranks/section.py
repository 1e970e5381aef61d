"""An order of hosts as a section of the report: what it costs next to other orders, why, and the order."""

from __future__ import annotations

from treadle.passes.ranks.figure import orders_svg
from treadle.passes.ranks.words import OBJECTIVES, collective, ordered, predicted
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_time, many
from treadle.planner.passes.ranks.decisions import RanksDecisions
from treadle.report.page import Picture, Section, Table, titled

PICTURE = (
    "What a hop costs between places of the list, dark where it is dear: with the hosts as they were handed out, and "
    "in the planned order. Circles mark the places between which the library sends."
)


def ranks_section(name: str, plan: Plan[RanksDecisions]) -> Section:
    """The section of one order of hosts."""
    decisions = plan.decisions
    problem, proof = decisions.problem, plan.certificate
    moved = sum(host != place for place, host in enumerate(decisions.order))
    text = (
        f"{many(len(problem.hosts), 'host')} for {collective(decisions)}; a cost is {OBJECTIVES[problem.objective]}. "
        f"{predicted(decisions).capitalize()} is predicted to take {format_time(decisions.time_ns)}. "
        f"{many(moved, 'host')} moved. No order costs less than {format_time(proof.lower_bound)}: {proof.argument}."
    )
    pictures = (Picture(orders_svg(decisions), PICTURE),) if len(problem.hosts) > 1 else ()
    return Section(titled("Order of hosts", name), text, (_costs(decisions), _order(decisions)), pictures)


def _costs(decisions: RanksDecisions) -> Table:
    cost = decisions.cost_ns
    rows = (
        ("planned", cost),
        ("as handed out", decisions.original_ns),
        ("random, median", decisions.median_ns),
        ("worst found", decisions.worst_ns),
    )
    return Table(
        ("order", "cost", "times the planned one"),
        tuple((name, format_time(ns), f"{ns / cost:.3f}" if cost else "-") for name, ns in rows),
        "What other orders cost.",
    )


def _order(decisions: RanksDecisions) -> Table:
    slots = decisions.problem.hosts[0].slots
    rows = []
    for place, (name, host) in enumerate(zip(ordered(decisions), decisions.order, strict=True)):
        first = place * slots
        ranks = str(first) if slots == 1 else f"{first} to {first + slots - 1}"
        rows.append((name, str(place), ranks, str(host)))
    return Table(("host", "place", "ranks", "place as handed out"), tuple(rows), "The hosts in order.")
