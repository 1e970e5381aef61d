"""A sparse plan as a section of the report: what every scheme would take for each gradient, and why one was chosen."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.passes.sparse.figure import SchemeBar, schemes_svg
from treadle.passes.sparse.words import density, planned
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time, many
from treadle.planner.passes.sparse.counts import GradientCounts
from treadle.planner.passes.sparse.decided import allowed, cost_of
from treadle.planner.passes.sparse.decisions import GradientPlan, SparseDecisions
from treadle.planner.passes.sparse.schemes import BY_NAME, DENSE
from treadle.planner.passes.sparse.theorem import densification
from treadle.report.page import Picture, Section, Table, titled

DRAWN = 4
"""The most gradients that are drawn, those that take longest as dense ones first."""
SLOT_BYTES = 4
ORDERS = {
    "worker": "by number",
    "tree": "as a tree",
    "ring": "from the owner on",
    "none": "differs between participants",
}
CASES = {
    "hierarchy": "incremental hierarchy",
    "balanced": "balanced parts",
    "tie": "neither",
}


def sparse_section(name: str, plan: Plan[SparseDecisions]) -> Section:
    """The section of one sparse plan."""
    decisions = plan.decisions
    drawn = sorted(decisions.gradients, key=lambda each: -_dense_ns(each))[:DRAWN]
    tables = (_gradients(decisions), _cases(decisions), _memory(decisions))
    return Section(
        titled("Sparse gradients", name),
        _text(plan, len(decisions.gradients) - len(drawn)),
        (*(table for table in tables if table.rows), _schemes(decisions)),
        tuple(_picture(decisions, each) for each in drawn),
    )


def _text(plan: Plan[SparseDecisions], undrawn: int) -> str:
    decisions = plan.decisions
    problem, times = decisions.problem, decisions.dense_ns / max(1, decisions.time_ns)
    order = "in the order of participants" if decisions.sums == "worker" else "in any order that all participants share"
    left = f" The {many(undrawn, 'gradient')} that take least time as dense ones are in the tables only." * bool(
        undrawn
    )
    shared = (
        " Ranks of a node first add up their dense gradients, of which each then exchanges its shard."
        if problem.devices > 1
        else ""
    )
    extrapolated = (
        " Counts for so large a number of participants were extrapolated from recorded ones."
        if any(each.extrapolated for each in problem.gradients)
        else ""
    )
    return (
        f"{many(len(decisions.gradients), 'sparse gradient')} on {many(problem.machines, 'node')} of "
        f"{many(problem.devices, 'rank')}: their exchange is predicted to take {format_time(decisions.time_ns)}, and "
        f"{format_time(decisions.dense_ns)} with every gradient dense ({times:.2f}x); none takes less than "
        f"{format_time(plan.certificate.lower_bound)}. Values are added {order}.{shared}{extrapolated}{left}"
    )


def _dense_ns(plan: GradientPlan) -> int:
    return cost_of(plan, DENSE.name).time_ns


def _picture(decisions: SparseDecisions, plan: GradientPlan) -> Picture:
    n, dense_ns = decisions.problem.machines, _dense_ns(plan)
    bars = [
        SchemeBar(
            cost.scheme,
            cost.link_ns,
            cost.time_ns - cost.link_ns,
            cost.scheme == plan.scheme,
            allowed(BY_NAME[cost.scheme], n, decisions.sums),
        )
        for cost in sorted(plan.costs, key=lambda cost: cost.time_ns)
    ]
    chosen, dense = cost_of(plan, plan.scheme), format_time(dense_ns)
    if plan.scheme == DENSE.name and decisions.measured:
        verdict = f"The dense exchange takes {dense}, and was measured as the fastest."
    elif plan.scheme == DENSE.name:
        verdict = f"No scheme that the plan may choose takes less than the dense exchange, {dense}."
    else:
        verdict = f"{plan.scheme} takes {format_time(chosen.time_ns)}, the dense exchange {dense}."
    caption = f"Gradient {plan.name}: every scheme by its predicted time, the chosen one marked. {verdict}"
    return Picture(schemes_svg(bars, dense_ns, plan.least_ns), caption)


def _gradients(decisions: SparseDecisions) -> Table:
    rows = []
    for gradient, plan in planned(decisions):
        cost, dense = cost_of(plan, plan.scheme), cost_of(plan, DENSE.name)
        problem = decisions.problem
        rows.append(
            (
                gradient.name,
                f"{gradient.units:,} x {gradient.width}",
                f"{density(problem, gradient):.2%}",
                f"{density(problem, gradient, problem.machines):.2%}",
                plan.scheme,
                format_bytes(cost.bytes),
                format_time(cost.time_ns),
                format_time(dense.time_ns),
                f"{dense.time_ns / max(1, cost.time_ns):.2f}x",
            )
        )
    head = ("gradient", "units x width", "density", "of the sum", "scheme", "bytes", "time", "dense", "speed-up")
    return Table(head, tuple(rows), "The scheme of every gradient; densities are those of one participant and of all.")


def _cases(decisions: SparseDecisions) -> Table:
    """The two schemes of the theorem, in entries that a participant receives."""
    rows = []
    for gradient, plan in planned(decisions):
        unions, n = gradient.unions, len(gradient.unions)
        balanced = (n - 1) / n * (unions[0] + unions[-1])
        hierarchy = sum(unions[min(n, 1 << stage) - 1] for stage in range((n - 1).bit_length()))
        case = CASES[plan.favours]
        rows.append(
            (gradient.name, f"{densification(unions):.2f}x", f"{balanced:,.0f}", f"{hierarchy:,}", case, plan.scheme)
        )
    caption = (
        "Entries that one participant receives by the two schemes of which one has the fewest. Which one it is depends "
        "on how much participants have in common; formats, latency and work decide too."
    )
    head = ("gradient", "densification", "balanced parts", "incremental hierarchy", "fewer", "scheme")
    return Table(head, tuple(rows), caption)


def _memory(decisions: SparseDecisions) -> Table:
    rows = []
    for gradient, plan in planned(decisions):
        if plan.memory is None:
            continue
        parts = GradientCounts(decisions.problem, gradient).parts(BY_NAME[plan.scheme])
        words = parts * (plan.memory.slots + plan.memory.serial)
        rows.append(
            (
                gradient.name,
                f"{gradient.densest:,}",
                f"{parts}",
                f"{plan.memory.slots:,}",
                f"{plan.memory.serial:,}",
                format_bytes(SLOT_BYTES * words),
            )
        )
    head = ("gradient", "most units", "parts", "slots", "serial slots", "memory")
    caption = (
        "Hash memory of a rank, made for the most non-zero units that a participant had. More units make it grow, and "
        "the step is partitioned again: none is lost."
    )
    return Table(head, tuple(rows), caption)


def _schemes(decisions: SparseDecisions) -> Table:
    head = ("gradient", "scheme", "published as", "dimensions", "messages", "sums", "bytes", "between nodes",
            "on the node", "time", "of the chosen")  # fmt: skip
    rows = tuple(row for plan in decisions.gradients for row in _scheme_rows(decisions, plan))
    return Table(head, rows, "All schemes, in the order of the list.", words=True)


def _scheme_rows(decisions: SparseDecisions, plan: GradientPlan) -> Iterator[tuple[str, ...]]:
    best = cost_of(plan, plan.scheme).time_ns
    for cost in plan.costs:
        scheme = BY_NAME[cost.scheme]
        formats = dict.fromkeys(each for each in (scheme.push, scheme.pull) if each)
        yield (
            plan.name,
            scheme.name,
            scheme.published or "",
            ", ".join(scheme.dimensions),
            ", ".join(formats),
            ORDERS[scheme.order(decisions.problem.machines)],
            format_bytes(cost.bytes),
            format_time(cost.link_ns),
            format_time(cost.time_ns - cost.link_ns),
            format_time(cost.time_ns),
            "chosen" if scheme.name == plan.scheme else f"{cost.time_ns / max(1, best):.2f}x",
        )
