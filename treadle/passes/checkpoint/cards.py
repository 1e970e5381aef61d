"""The headline facts of a checkpoint plan."""

from __future__ import annotations

from treadle.passes.checkpoint.words import (
    POLICIES,
    certain,
    hardware_wastes,
    lines,
    often,
    survival_rows,
    trains,
    unrecoverable,
)
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, many
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
from treadle.report.page import Card

CHECKED = (
    "a checker that shares no code with the planner counted holders, pieces, what survives, memory, waste and the "
    "interval again"
)


def checkpoint_cards(plan: Plan[CheckpointDecisions]) -> tuple[Card, ...]:
    """How often, what survives, host memory and the check."""
    return (
        often_card(plan),
        survival_card(plan),
        memory_card(plan.decisions),
        Card("result", "checked, not run", None, CHECKED),
    )


def often_card(plan: Plan[CheckpointDecisions]) -> Card:
    """The interval, what a checkpoint adds to an iteration, and what failures waste against the other policies."""
    memory, *others = plan.decisions.waste
    note = (
        f"predicted: an iteration takes {dict(lines(plan))['iteration']}; a hardware failure wastes "
        f"{hardware_wastes(plan.decisions, memory)} in the mean"
    )
    if not unrecoverable(plan.decisions.problem):
        shares = [trains(plan.decisions, memory), *(f"{POLICIES[each.policy]} {each.ratio:.2%}" for each in others)]
        note += f"; of the time trains {', '.join(shares)}"
    return Card("checkpoints", often(plan.decisions), plan.decisions.every == 1 or None, note)


def survival_card(plan: Plan[CheckpointDecisions]) -> Card:
    """How many machines may be lost at once whatever they are, and what of more."""
    rows = [each for each in plan.decisions.survival if each.of == "machines"]
    sure = sum(certain(each, plan.decisions) for each in rows)
    value = f"any {many(sure, 'machine')}" if sure else "none for sure"
    more = [f"{lost} {share}" for lost, share, _ in survival_rows(plan)]
    return Card("may be lost", value, sure > 0, f"a copy of every state is left after the loss of {', '.join(more)}")


def memory_card(decisions: CheckpointDecisions) -> Card:
    """The fullest machine, against what it may take."""
    limit = decisions.problem.host_bytes
    states = f"two versions of {many(decisions.problem.copies, 'state')}"
    note = states if limit is None else f"{states}; {format_bytes(limit)} are allowed"
    return Card("host memory", format_bytes(decisions.host_bytes), None if limit is None else True, note)
