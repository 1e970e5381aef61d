"""An index plan as a section of the report: what was ranked and measured, how fast it is along the trace, memory."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.passes.index.figure import ranking_svg, windows_svg
from treadle.passes.index.words import (
    MEASURED_HEAD,
    leaves_words,
    measured_rows,
    memory_words,
    per_operation,
    ranked,
    second_words,
    time_words,
    workload_words,
)
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_time
from treadle.planner.passes.index.decisions import IndexDecisions
from treadle.planner.passes.index.problem import IndexProblem
from treadle.report.page import Picture, Section, Table, titled

RANKED = (
    "Every configuration in the order of its prediction (dots). Only the first were measured (diamonds); the fastest "
    "of those that may be taken is chosen."
)
WINDOWS = "Throughput along the trace on one core. Where a line falls, inserts reorganise the leaves."


def index_section(name: str, plan: Plan[IndexDecisions]) -> Section:
    """The section of one index plan."""
    decisions = plan.decisions
    return Section(titled("Index", name), _text(decisions), (*_tables(decisions),), (*_pictures(decisions),))


def _text(decisions: IndexDecisions) -> str:
    problem = decisions.problem
    found = [
        f"Workload: {workload_words(problem)}.",
        f"Leaves: {leaves_words(decisions.chosen)}.",
        f"Time: {time_words(decisions)}.",
    ]
    if decisions.bytes is not None:
        found.append(f"Memory: {memory_words(problem, decisions.bytes, decisions.over_memory)}.")
    if decisions.second is not None:
        found.append(f"Second best: {second_words(decisions)}.")
    measured = "" if decisions.bytes is None else f", measured on one core of {problem.machine}"
    found.append(f"Predicted by the model '{problem.model}'{measured}.")
    return " ".join(found)


def _tables(decisions: IndexDecisions) -> Iterator[Table]:
    rows = measured_rows(decisions)
    if rows:
        yield Table(
            _name_first(MEASURED_HEAD), tuple(map(_name_first, rows)), "Measured configurations, the fastest first."
        )
    yield _predictions(decisions.problem)


def _name_first(row: tuple[str, ...]) -> tuple[str, ...]:
    """Rank and leaves of a row in the other order, since a page aligns the first column only as words."""
    rank, leaves, *others = row
    return (leaves, rank, *others)


def _predictions(problem: IndexProblem) -> Table:
    rows = tuple(
        (
            each.name,
            str(each.rank),
            format_time(round(each.candidate.predicted_ns)),
            per_operation(problem, each.candidate.predicted_ns),
        )
        for each in ranked(problem)
    )
    return Table(("leaves", "rank", "predicted", "an operation"), rows, "All configurations, the best predicted first.")


def _pictures(decisions: IndexDecisions) -> Iterator[Picture]:
    yield Picture(ranking_svg(decisions), RANKED)
    if any(each.measured is not None for each in decisions.problem.candidates):
        yield Picture(windows_svg(decisions), WINDOWS)
