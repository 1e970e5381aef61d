"""A sparse plan as a section of the report: every gradient and its scheme."""

from __future__ import annotations

from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_time
from treadle.planner.passes.sparse.decided import cost_of
from treadle.planner.passes.sparse.decisions import SparseDecisions
from treadle.planner.passes.sparse.schemes import DENSE
from treadle.report.page import Section, Table, titled


def sparse_section(name: str, plan: Plan[SparseDecisions]) -> Section:
    """The section of one sparse plan."""
    decisions = plan.decisions
    rows = tuple(
        (
            each.name,
            each.scheme,
            format_time(cost_of(each, each.scheme).time_ns),
            format_time(cost_of(each, DENSE.name).time_ns),
        )
        for each in decisions.gradients
    )
    text = (
        f"The exchange of all sparse gradients is predicted to take {format_time(decisions.time_ns)}, and "
        f"{format_time(decisions.dense_ns)} with every gradient dense."
    )
    head = ("gradient", "scheme", "time", "dense")
    return Section(titled("Sparse gradients", name), text, (Table(head, rows, "The scheme of every gradient."),))
