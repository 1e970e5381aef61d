"""`treadle plan memory --sweep`: one problem at many budgets, a plan for each in one folder."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from planner.errors import InputError
from treadle.cli.output import note, print_json

if TYPE_CHECKING:
    from planner.memory.sweep import Point
    from planner.plan import Plan

STEPS = 9
_RANGE = re.compile(r"([0-9.]+)x\.\.([0-9.]+)x(?::([0-9]+))?")


def shares(text: str) -> list[Fraction]:
    """`0.2x..1.0x` as nine shares from 0.2 to 1, `0.2x..1.0x:5` as five. Raises InputError for anything else."""
    match = _RANGE.fullmatch(text.strip())
    try:
        if match is None:
            raise ValueError
        low, high, count = Fraction(match[1]), Fraction(match[2]), int(match[3] or STEPS)
    except ValueError:
        low, high, count = Fraction(0), Fraction(0), 0
    if not (0 < low < high <= 100 and 2 <= count <= 100):
        expected = "a range of shares of the store-all peak such as 0.2x..1.0x, or 0.2x..1.0x:5 for five budgets"
        raise InputError(f"found {text!r}, expected {expected}", where="--sweep")
    return [low + (high - low) * step / (count - 1) for step in range(count)]


def file_name(budget_bytes: int) -> str:
    return f"{budget_bytes}.plan.json"


def finish(
    points: list[Point],
    folder: Path,
    save: Callable[[Plan, Path], None],
    facts: Callable[[Plan], dict[str, Any]],
    as_json: bool,
) -> None:
    """Write the plans and print the curve."""
    from planner.scalars import format_bytes

    rows = []
    for point in points:
        row: dict[str, Any] = {"budget_bytes": point.budget_bytes}
        if point.plan is None:
            row |= {"infeasible": point.infeasible, "reason": point.reason}
        else:
            place = folder / file_name(point.budget_bytes)
            save(point.plan, place)
            row |= {**facts(point.plan), "plan": str(place)}
        rows.append(row)
    if as_json:
        print_json(rows)
    else:
        click.echo(f"{'budget':>12}{'peak':>12}{'time ms':>14}{'overhead':>10}{'gap':>8}  found by")
        for row in rows:
            budget = f"{format_bytes(row['budget_bytes']):>12}"
            if "plan" not in row:
                click.echo(f"{budget}  {row['reason']}")
            else:
                click.echo(
                    f"{budget}{format_bytes(row['peak_bytes']):>12}{row['time_ns'] / 1e6:>14.6g}"
                    f"{row['overhead']:>+10.2%}{row['gap']:>8.2%}  {row['method']}"
                )
        click.echo(f"wrote {sum('plan' in row for row in rows)} plans to {folder}")
    if any(row.get("interrupted") for row in rows):
        note("interrupted: larger budgets have the plans found for smaller ones")
