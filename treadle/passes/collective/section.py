"""A collective plan as a section of the report: its messages on links over time, and what was compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import inf

from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import KnownOptions, Plan
from treadle.planner.documents.scalars import format_bytes, many
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.report.page import Picture, Section, Table, titled
from treadle.report.timeline_figure import Bar, timeline_svg


def collective_section(name: str, plan: Plan[CollectiveDecisions], hardware: Hardware | None) -> Section:
    """The section of one plan, with its links drawn on `hardware` where that is given."""
    decisions = plan.decisions
    bytes_over = Counter[tuple[int, int]]()
    bars = []
    for move in decisions.transfers:
        bytes_over[move.src, move.dst] += decisions.chunk_bytes
        bars.append(
            Bar(
                f"{move.src} → {move.dst}",
                move.send_ns / 1e3,
                (move.arrive_ns - move.send_ns) / 1e3,
                "reduce" if move.reduce else "copy",
                str(move.chunk),
            )
        )
    for step in decisions.switched:
        took_us = (step.end_ns - step.start_ns) / 1e3
        bars.append(Bar(f"{step.rank} → {step.switch}", step.start_ns / 1e3, took_us, step.op, str(step.chunk)))
    bars.sort(key=lambda bar: ([int(end) for end in bar.row.split(" → ") if end.isdigit()], bar.row, bar.start_us))
    pictures = []
    if hardware is not None:
        from treadle.probe.draw import topology_svg

        pictures.append(
            Picture(topology_svg(hardware, dict(bytes_over)), "The links the algorithm uses; wider means more bytes.")
        )
    caption = "Every transfer on its link, labelled with its chunk."
    if decisions.switched:
        caption = "What each rank loads and stores through the switch, labelled with its chunk."
    pictures.append(Picture(timeline_svg(bars), caption))
    time_us = plan.prediction.time_us
    bandwidth = decisions.input_bytes / max(time_us * 1e3, 1)
    messages_us = decisions.makespan_ns / 1e3
    alone = (
        f" The pictures show the messages alone, which take {messages_us:,.1f} us on links and ports."
        if f"{messages_us:,.1f}" != f"{time_us:,.1f}"
        else ""
    )
    moves = many(len(decisions.transfers), "transfer")
    if decisions.switched:
        moves = many(len(decisions.switched), "step") + " in the switch"
    text = (
        f"{decisions.collective} of {format_bytes(decisions.input_bytes)} on each of {many(decisions.ranks, 'rank')} "
        f"in {time_us:,.1f} us ({bandwidth:.3g} GB/s of input), "
        f"{moves} of {format_bytes(decisions.chunk_bytes)}, "
        f"protocol {decisions.protocol}, {many(decisions.instances, 'instance')}.{alone}"
    )
    rows = tuple(
        (f"{src} → {dst}", str(size // decisions.chunk_bytes), format_bytes(size))
        for (src, dst), size in sorted(bytes_over.items())
    )
    tables = (*candidates(plan), Table(("link", "chunks", "bytes"), rows, "Traffic of each link."))
    return Section(titled("Collective", name), text, tables, tuple(pictures))


def candidates(plan: Plan[CollectiveDecisions]) -> tuple[Table, ...]:
    """What `auto` compared, best first, and the protocols and instances that were simulated; nothing where the plan
    does not record them."""
    known = plan.provenance.known
    tables = []
    if known.candidates_ns:
        tables.append(_compared(known))
    if known.skipped:
        reasons = tuple(sorted(known.skipped.items()))
        tables.append(Table(("method", "reason"), reasons, "Methods that auto left out.", words=True))
    transport = known.transport
    if transport is not None and transport.simulated_us:
        over = "{} over symmetric memory".format
        times = {**transport.simulated_us, **{over(name): time for name, time in transport.symmetric_us.items()}}
        rows = _ranked(times, over(transport.symmetric) if transport.symmetric else transport.chosen)
        caption = "Protocols and instances, by the simulated time of the program."
        tables.append(Table(("protocol x instances", "simulated us"), rows, caption))
    return tuple(tables)


def _compared(known: KnownOptions) -> Table:
    """The methods by the time of their program where it was simulated, then by that of their messages alone."""
    links, programs = known.candidates_ns, known.candidates_us
    ranked = sorted(links, key=lambda name: (programs.get(name, inf), links[name], name != known.chosen, name))
    rows = tuple(
        (
            f"{name} (chosen)" if name == known.chosen else name,
            *([f"{programs[name]:,.3f}" if name in programs else "-"] if programs else []),
            f"{links[name] / 1e3:,.3f}",
        )
        for name in ranked
    )
    titles = ("method", *(["program, us"] if programs else []), "messages alone, us")
    return Table(titles, rows, "Methods that auto compared, by predicted time.")


def _ranked(times: Mapping[str, float], chosen: str | None) -> tuple[tuple[str, ...], ...]:
    ranked = sorted(times, key=lambda name: (times[name], name != chosen, name))
    return tuple((f"{name} (chosen)" if name == chosen else name, f"{times[name]:,.3f}") for name in ranked)
