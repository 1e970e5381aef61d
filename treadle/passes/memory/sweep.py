"""`treadle plan memory --sweep`: a folder of plans at many budgets, the table of them and their curve."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.cli.json_output import print_json
from treadle.cli.limit import clock_of
from treadle.cli.output import live_line, note, print_table
from treadle.cli.progress import ProgressLine
from treadle.cli.sweep import older_plans, print_written, remove_plans
from treadle.planner.documents import store
from treadle.planner.documents.files import read_text, write_text
from treadle.planner.documents.overwrite import require_replaceable
from treadle.planner.documents.quantities import Spread, format_quantity, parse_values
from treadle.planner.documents.scalars import format_bytes, many
from treadle.planner.errors import InfeasibleError, LimitError, MissingBackendError
from treadle.planner.passes.memory.planning import Budget, parse_budget, with_budget

if TYPE_CHECKING:
    from treadle.planner.documents.plan import InputRef, Plan
    from treadle.planner.passes.memory.decisions import MemoryDecisions
    from treadle.planner.passes.memory.problem import MemoryProblem
    from treadle.planner.passes.memory.search.attempts import MemoryOptions
    from treadle.planner.passes.memory.search.sweep import Point
    from treadle.planner.solver import Progress

POINTS, MOST = 9, 100
TABLE, CURVE = "sweep.csv", "pareto.svg"
COLUMNS = ("budget_bytes", "peak_bytes", "time_ns", "store_all_ns", "lower_bound_ns", "gap", "method", "plan", "reason")


def parse_budgets(text: str) -> tuple[Budget, ...]:
    """`0.2x..1.0x` or `4GiB..12GiB`: nine budgets in equal steps, both ends included, or as many as `:5` says, or a
    list.

    Raises InputError for anything else.
    """
    return parse_values(text, partial(parse_budget, where="--sweep"), Spread.evenly(POINTS, MOST), where="--sweep")


def plan_budgets(
    problem: MemoryProblem,
    budgets: Sequence[Budget],
    output: str,
    options: MemoryOptions,
    inputs: dict[str, InputRef],
    input_file: str | None,
    summary: Callable[[Plan[MemoryDecisions]], dict[str, Any]],
    as_json: bool,
) -> None:
    """Plan at each of `budgets`, write the folder `output`, print the table.

    A plan is written as soon as it is there. Raises InputError where a file of another kind would be replaced,
    InfeasibleError and LimitError where no budget has a plan.
    """
    from treadle.passes.memory.pareto import HEAD, curve_svg
    from treadle.planner.passes.memory.search.sweep import Point, sweep

    folder = Path(output)
    older = older_plans(folder, TABLE, lambda: _plans_in(folder / TABLE))
    names = _names(problem, budgets, options)
    labels = [name.removesuffix(".plan.json") for _, name in sorted(names.items())]
    for name in (*names.values(), TABLE, CURVE):
        kind = {TABLE: "table", CURVE: "picture"}.get(name, "plan")
        require_replaceable(folder / name, kind, [input_file])
    done = 0
    so_far: dict[int, dict[str, Any]] = {}

    def write(point: Point) -> None:
        """The table first: a folder without one is no sweep's, and the next sweep would not write into it."""
        so_far[point.budget_bytes] = _row(point, names, summary)
        write_text(folder / TABLE, _csv(list(so_far.values())))
        if point.plan is not None:
            store.save(point.plan, folder / names[point.budget_bytes])

    def on_point(point: Point) -> None:
        nonlocal done
        done += 1
        if point.plan is not None:
            write(point)

    def on_plan(plan: Plan[MemoryDecisions]) -> None:
        write(Point(budget_bytes=plan.decisions.problem.budget_bytes, plan=plan))

    def on_progress(progress: Progress) -> None:
        place = min(done, len(labels) - 1)
        line.begin(f"{labels[place]}, {place + 1} of {len(labels)}")
        line(progress)

    clock = clock_of(None)
    with live_line() as show:
        line = ProgressLine(show, lambda: clock.elapsed_s)
        points = sweep(
            problem, budgets, options, inputs=inputs, on_progress=on_progress, on_point=on_point, on_plan=on_plan
        )
    plans = {names[point.budget_bytes]: point.plan for point in points if point.plan is not None}
    if not plans:
        failure = InfeasibleError if all(point.infeasible for point in points) else LimitError
        raise failure(f"no budget of the sweep has a plan: {points[-1].reason}")
    for name, plan in plans.items():
        store.save(plan, folder / name)
    rows = [_row(point, names, summary) for point in points]
    impossible = max((point.budget_bytes for point in points if point.infeasible), default=None)
    write_text(folder / TABLE, _csv(rows))
    written = [many(len(plans), "plan"), TABLE]
    try:
        write_text(folder / CURVE, curve_svg(list(plans.values()), impossible))
        written.append(CURVE)
    except MissingBackendError as error:
        note(f"no {CURVE}: {error}")
    remove_plans(folder, older - plans.keys())
    if any(row.get("interrupted") for row in rows):
        note("interrupted: larger budgets have the plans found for smaller ones")
    elif any(row.get("limit_fired") for row in rows):
        note(f"the time limit of {options.time_limit_s:g} s ended the search at some budgets; see their gaps")
    if as_json:
        print_json("plan-memory-budgets", {"output": output, "points": rows})
        return
    print_table("", (*HEAD, "plan"), [_cells(point, names) for point in points])
    print_written(written, output)


def _names(problem: MemoryProblem, budgets: Sequence[Budget], options: MemoryOptions) -> dict[int, str]:
    """File names of the plans by budget in bytes, such as `0.2x.plan.json`."""
    names: dict[int, str] = {}
    for budget in budgets:
        size = with_budget(problem, budget, options).budget_bytes
        name = f"{format_quantity(budget)}.plan.json"
        names.setdefault(size, f"{size}B.plan.json" if name in names.values() else name)
    return names


def _row(
    point: Point, names: Mapping[int, str], summary: Callable[[Plan[MemoryDecisions]], dict[str, Any]]
) -> dict[str, Any]:
    if point.plan is None:
        return {"budget_bytes": point.budget_bytes, "infeasible": point.infeasible, "reason": point.reason}
    return {**summary(point.plan), "plan": names[point.budget_bytes]}


def _cells(point: Point, names: Mapping[int, str]) -> tuple[str | None, ...]:
    """A row of the table; without a plan, the reason stands in the last column."""
    from treadle.passes.memory.pareto import HEAD, cells

    if point.plan is None:
        return (format_bytes(point.budget_bytes), *[None] * (len(HEAD) - 1), point.reason)
    return (*cells(point.plan), names[point.budget_bytes])


def _plans_in(table: Path) -> list[str]:
    """The plans that the table of a sweep lists."""
    rows = csv.DictReader(io.StringIO(read_text(table)))
    return [name for row in rows if (name := row.get("plan") or "") and name == Path(name).name]


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()
