"""A selection as a section of the report: its ranges, their times over size, and what was simulated to choose."""

from __future__ import annotations

from treadle.passes.collective.rivals import rivals_table
from treadle.passes.collective.sizes_figure import SizeRange, sizes_svg
from treadle.planner.documents.scalars import format_bytes, many
from treadle.planner.documents.selection import Entry, Selection
from treadle.report.cards import CHECKED
from treadle.report.page import Card, Picture, Section, Table, titled


def selection_section(name: str, selection: Selection) -> Section:
    """The section of one selection, which says nothing about its plans but their names."""
    entries = selection.entries
    plans = {entry.plan.file for entry in entries}
    span = f"{format_bytes(entries[0].min_bytes)} to {format_bytes(entries[-1].max_bytes)}"
    gaps = [gap for entry in entries for gap in _gaps(entry)]
    text = (
        f"{selection.name}, {span} of input each: {many(len(plans), 'algorithm')} in {many(len(entries), 'range')}. "
        f"At the {many(len(selection.sizes), 'size')} that were tried, it is within {selection.tolerance:.0%} of the "
        f"best plan found; at the ends of the ranges it is at most {max(gaps):.1%} above the proven lower bound."
    )
    tables = (_ranges(selection), *_simulated(selection), *rivals_table(selection))
    caption = (
        "Time over size, both logarithmic. Solid: planned transfers on links and ports. Dotted: the program that is "
        "generated, with its threadblocks, protocol and instances, as treadle simulate runs it. Dashed: the lower "
        "bound; no algorithm is faster on these links. Vertical lines: where another algorithm, protocol or number of "
        "instances takes over."
    )
    drawn = sizes_svg([_drawn(entry) for entry in entries])
    return Section(titled("Sizes", name), text, tables, (Picture(drawn, caption),))


def selection_cards(selection: Selection) -> tuple[Card, ...]:
    """The headline facts of one selection."""
    entries = selection.entries
    above = [gap for entry in entries for gap in _gaps(entry)]
    plans = len({entry.plan.file for entry in entries})
    span = f"{format_bytes(entries[0].min_bytes)} to {format_bytes(entries[-1].max_bytes)}"
    count = (
        f"{many(plans, 'algorithm')} in {many(len(entries), 'range')}, for {many(len(selection.sizes), 'size')} tried"
    )
    best = "of the best plan found, by predicted time, at the sizes tried"
    bound = "planned time against the proven lower bound, at the ends of the ranges"
    return (
        Card("input of one rank", span, None, count),
        Card("within", f"{selection.tolerance:.0%}", None, best),
        Card("gap to the lower bound", f"{min(above):.0%} to {max(above):.0%}", None, bound),
        Card("result", "checked, not run", None, CHECKED.format("every rank ends with the result of every algorithm")),
    )


def _key(entry: Entry) -> str:
    return f"{entry.protocol} x {entry.instances}"


def _name(entry: Entry) -> str:
    return entry.plan.file.removesuffix(".json").removesuffix(".plan")


def _gaps(entry: Entry) -> list[float]:
    """By how much the plan is above the bound at both ends, as a share of the bound."""
    return [time / bound - 1 if bound else 0.0 for time, bound in zip(entry.predicted_us, entry.bound_us, strict=True)]


def _drawn(entry: Entry) -> SizeRange:
    first, last = entry.simulated_us.get(_key(entry), (None, None))
    simulated = None if first is None or last is None else (first, last)
    return SizeRange(
        f"{_name(entry)}, planned", (entry.min_bytes, entry.max_bytes), entry.predicted_us, entry.bound_us, simulated
    )


def _ranges(selection: Selection) -> Table:
    rows = []
    for entry in selection.entries:
        run = entry.simulated_us.get(_key(entry), (None, None))
        rows.append(
            (
                f"{format_bytes(entry.min_bytes)} to {format_bytes(entry.max_bytes)}".replace(" ", "\u00a0"),
                entry.protocol,
                str(entry.instances),
                _pair(entry.predicted_us),
                _pair(entry.bound_us),
                " to ".join(f"{gap:.1%}" for gap in _gaps(entry)),
                _pair(run),
                _name(entry),
            )
        )
    head = ("input of one rank", "protocol", "instances", "planned us", "lower bound us",
            "above the bound", "simulated us", "plan")  # fmt: skip
    return Table(head, tuple(rows), "Which plan runs at which size.")


def _simulated(selection: Selection) -> tuple[Table, ...]:
    """What else was simulated, a column for each range."""
    names = sorted(
        {name for entry in selection.entries for name in entry.simulated_us},
        key=lambda name: (name.partition(" x ")[0], len(name), name),
    )
    if not names:
        return ()
    head = ("simulated us", *(format_bytes(entry.min_bytes) for entry in selection.entries))
    rows = tuple(
        (
            name,
            *(
                _pair(entry.simulated_us[name], "chosen: " if name == _key(entry) else "")
                if name in entry.simulated_us
                else ""
                for entry in selection.entries
            ),
        )
        for name in names
    )
    return (
        Table(
            head,
            rows,
            "Protocols and instances that were simulated, at both ends of a range; - where not tried.",
        ),
    )


def _pair(ends: tuple[float | None, float | None], before: str = "") -> str:
    return before + " to ".join("-" if time is None else f"{time:,.2f}" for time in ends)
