"""What commands print of choices that a model ranked and a measurement decided."""

from __future__ import annotations

from typing import Any

import typer

from treadle.cli.output import note, printable
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.tuned import Tuned


def note_unmeasured(plan: Plan) -> None:
    """Say of a plan that was to be measured that it was not: a limit or Ctrl-C came before."""
    if not plan.provenance.tuned:
        note("nothing was measured: this is the best by predicted time")


def print_tuned(plan: Plan, indent: str = "") -> None:
    """A line for each measured choice of a plan."""
    for tuned in plan.provenance.tuned:
        typer.echo(indent + printable(tuned_line(tuned)))


def tuned_line(tuned: Tuned) -> str:
    """`schedule: 24 ranked by prices of launches, 6 measured, took the 3rd predicted, 1.2 times as fast as the 1st;
    measured / predicted: 1.4`."""
    ranked, took = len(tuned.ranked) + tuned.unlisted, tuned.ranked[tuned.place - 1]
    words = f"{tuned.what}: {ranked:,} ranked by {tuned.model}, {len(tuned.measured)} measured, took the "
    words += f"{ordinal(tuned.place)} predicted"
    first = tuned.ranked[0].measured_ns
    if tuned.place > 1 and first and took.measured_ns and first > took.measured_ns:
        words += f", {first / took.measured_ns:.3g} times as fast as the 1st"
    return words if tuned.off is None else f"{words}; measured / predicted: {tuned.off:.3g}"


def tuned_facts(plan: Plan) -> list[dict[str, Any]]:
    """What `--json` prints of the measured choices of a plan."""
    return [
        {
            "what": tuned.what,
            "model": tuned.model,
            "ranked": len(tuned.ranked) + tuned.unlisted,
            "measured": len(tuned.measured),
            "chosen": tuned.chosen,
            "place": tuned.place,
            "measured_over_predicted": tuned.off,
        }
        for tuned in plan.provenance.tuned
    ]


def ordinal(place: int) -> str:
    """`1st`, `2nd`, `11th`."""
    ending = "th" if place % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{ending}"
