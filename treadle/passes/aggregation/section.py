"""An aggregation plan as a section of the report: where hosts lie, their groups, and who adds up what."""

from __future__ import annotations

from treadle.passes.aggregation.figure import HostDot, hosts_svg, in_plane, on_a_circle
from treadle.passes.aggregation.words import OTHER, duties, group_names, links, named, ratio, rival, why
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time, many
from treadle.planner.passes.aggregation.decisions import AggregationDecisions
from treadle.report.cards import bound_card, time_card
from treadle.report.page import Card, Picture, Section, Table, titled

CHECKED = "a checker that shares no code with the planner followed every contribution, and counted bytes and times"


def aggregation_cards(plan: Plan[AggregationDecisions]) -> tuple[Card, ...]:
    """Predicted time against the ring, what crosses between groups, the bound and the check."""
    decisions = plan.decisions
    ring = rival(decisions, "ring")
    time = (
        Card("predicted time", format_time(decisions.time_ns), None, "not measured")
        if ring is None
        else time_card("time of a sum", decisions.time_ns, ring.time_ns, "a ring along the groups", "predicted")
    )
    share = decisions.across_bytes / max(1, decisions.total_bytes)
    groups = "one group" if len(decisions.near) == 1 else many(len(decisions.near), "group")
    across = Card("between groups", format_bytes(decisions.across_bytes), None, f"{groups}; {share:.0%} of all bytes")
    return time, across, bound_card(plan), Card("result", "checked, not run", None, CHECKED)


def aggregation_section(name: str, plan: Plan[AggregationDecisions]) -> Section:
    """The section of one plan."""
    decisions = plan.decisions
    problem = decisions.problem
    text = (
        f"{format_bytes(problem.size_bytes)} on each of {many(len(problem.hosts), 'host')} are predicted to be summed "
        f"up in {format_time(decisions.time_ns)}; nothing takes less than "
        f"{format_time(plan.certificate.lower_bound)}. {many(len(decisions.chunks), 'chunk')}, "
        f"{why(decisions)}. By what was measured, {links(decisions)}."
    )
    tables = (_hosts(decisions), _groups(decisions), _rivals(decisions))
    return Section(titled("Aggregation", name), text, tables, (_picture(decisions),))


def _picture(decisions: AggregationDecisions) -> Picture:
    embedding, size = decisions.embedding, decisions.problem.size_bytes
    points = on_a_circle(decisions.near) if embedding is None else in_plane(embedding.points, decisions.near)
    home = {host: number for number, group in enumerate(decisions.near) for host in group}
    dots = [
        HostDot(
            host.name,
            *points[place],
            home[place],
            duty.local_bytes / size,
            duty.top_bytes / size,
            f"{host.name}, group {home[place]}\n{format_bytes(duty.local_bytes)} as a local master, of them "
            f"{format_bytes(duty.top_bytes)} as the global one",
        )
        for place, (host, duty) in enumerate(zip(decisions.problem.hosts, duties(decisions), strict=True))
    ]
    where = "where their measured costs place them" if embedding is not None else "by group"
    caption = (
        f"Hosts {where}, one colour for each group. A dot is the larger the more bytes its host adds up for its group, "
        "its dark core those that it adds up for all."
    )
    return Picture(hosts_svg(dots, len(decisions.near)), caption)


def _hosts(decisions: AggregationDecisions) -> Table:
    home = {host: number for number, group in enumerate(decisions.near) for host in group}
    rows = tuple(
        (host.name, str(home[place]), format_bytes(duty.local_bytes), format_bytes(duty.top_bytes))
        for place, (host, duty) in enumerate(zip(decisions.problem.hosts, duties(decisions), strict=True))
    )
    head = ("host", "group", "local master", "global master")
    return Table(head, rows, "What each host adds up: for its group, and of that for all.")


def _groups(decisions: AggregationDecisions) -> Table:
    rows = tuple((str(number), named(group_names(decisions, group))) for number, group in enumerate(decisions.near))
    times = ratio(decisions)
    note = "" if times is None else f" Streams inside them are {times:.2f} times as fast as between them."
    return Table(("group", "hosts"), rows, f"Groups of near hosts.{note}", words=True)


def _rivals(decisions: AggregationDecisions) -> Table:
    mine = ("this plan", format_time(decisions.time_ns), format_bytes(decisions.across_bytes), "")
    rows = tuple(
        (
            each.name,
            format_time(each.time_ns),
            format_bytes(each.across_bytes),
            f"{each.time_ns / max(1, decisions.time_ns):.2f}x",
        )
        for each in sorted(decisions.rivals, key=lambda each: each.time_ns)
    )
    caption = f"Other schemes on these hosts; {OTHER[decisions.levels]} has the other number of levels."
    return Table(("scheme", "predicted", "between groups", "of the plan"), (mine, *rows), caption)
