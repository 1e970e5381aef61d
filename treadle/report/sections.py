"""Plans as sections of the report: what was decided, how it looks over time, why it can be trusted."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.check.plan import check_plan, quality
from treadle.passes import room, room_of
from treadle.passes.interface import SectionContext
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_time, many
from treadle.planner.passes import name_of, pass_of, rooms
from treadle.report.page import Card, Section, Table


def plan_section(
    name: str, plan: Plan, hardware: Hardware | None = None, measured: Mapping[str, int] | None = None
) -> Section:
    """The section of one plan. measured: peaks in bytes by label, for sections that draw them."""
    return room_of(plan).section(name, plan, SectionContext(hardware, measured or {}))


def plan_cards(
    plan: Plan, hardware: Hardware | None = None, measured: Mapping[str, int] | None = None
) -> tuple[Card, ...]:
    """The headline facts of one plan."""
    return room_of(plan).cards(plan, SectionContext(hardware, measured or {}))


def glance(plans: Mapping[str, Plan]) -> list[Section]:
    """The headline facts of several plans, a table for those with the same ones."""
    tables: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for name, plan in plans.items():
        cards = plan_cards(plan)
        labels = tuple(card.label for card in cards)
        tables.setdefault(labels, []).append((name, *(card.value for card in cards)))
    found = tuple(Table(("plan", *labels), tuple(rows), words=True) for labels, rows in tables.items())
    tuned = any(plan.provenance.tuned for plan in plans.values())
    figures = (
        "Figures are predictions, or were measured when a plan was made" if tuned else "All figures are predictions"
    )
    return [Section("At a glance", f"{figures}; no plan was run for this page.", found)]


def certificate_sections(plans: Mapping[str, Plan], qualities: Mapping[str, str], checked: str) -> list[Section]:
    """The last sections of a page: what is proved of each plan, and from what it was made. checked: who checked."""
    return [
        Section("Checks and lower bounds", checked, (certificates(plans, qualities),)),
        Section("Inputs and search", "Files and methods that each plan was made with.", (inputs_table(plans),)),
    ]


def sections_together(plans: Mapping[str, Plan]) -> list[Section]:
    """The sections on several plans of one pass."""
    sections = []
    for made_by in rooms():
        same = {name: plan for name, plan in plans.items() if name_of(plan.decisions) == made_by.name}
        sections += room(made_by.name).together(same)
    return sections


def certificates(plans: Mapping[str, Plan], qualities: Mapping[str, str] | None = None) -> Table:
    """One row per plan: what the checker finds now, time, bound, gap, and the argument of the bound.

    qualities: words for plans of which more is known than they say themselves.
    """
    rows = []
    for name, plan in plans.items():
        findings = check_plan(plan)
        proof = plan.certificate
        rows.append(
            (
                name,
                f"rejected: {many(len(findings), 'finding')}" if findings else "accepted",
                format_time(proof.objective),
                format_time(proof.lower_bound),
                (qualities or {}).get(name) or quality(plan),
                proof.argument,
            )
        )
    head = ("plan", "independent check", "time", "lower bound", "quality", "argument of the lower bound")
    return Table(head, tuple(rows), words=True)


def inputs_table(plans: Mapping[str, Plan]) -> Table:
    """Which documents each plan was made from, by digest, and how it was solved."""
    rows = []
    for name, plan in plans.items():
        made = plan.provenance
        files = "; ".join(f"{role} {ref.file} ({ref.digest[:19]})" for role, ref in sorted(plan.inputs.items()))
        rows.append((name, files, made.method, _ended(plan), made.tool))
    return Table(("plan", "inputs", "method", "search ended", "made by"), tuple(rows), words=True)


def _ended(plan: Plan) -> str:
    """Why the search of a plan ended. The status `feasible` means a gap target or a limit on work."""
    made = plan.provenance
    if made.interrupted:
        return "interrupted"
    if made.limit_fired:
        return "wall-clock limit"
    if plan.certificate.optimal:
        return f"proved {pass_of(plan).optimal(plan)}"
    status, target = made.solver_status, made.known.gap
    if status is None:
        return "not recorded"
    if status == "none":
        return "limit before the solver found a plan"
    if target is not None and plan.certificate.gap <= target:
        return f"gap target of {target:.2%} reached"
    return f"gap target or deterministic limit ({status})" if "feasible" in status else f"on its own ({status})"
