"""How old measured costs are: networks change, and with them which hosts are near."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from treadle.planner.documents.cost_matrix import CostMatrix

OLDEST = timedelta(days=1)
"""Costs that are older are worth a warning."""


def age_of(costs: CostMatrix, now: datetime) -> timedelta | None:
    """The time since they were measured, None where that is not known."""
    if costs.measured_at is None:
        return None
    return max(timedelta(0), now - datetime.fromisoformat(costs.measured_at))


def old_costs(costs: CostMatrix, where: str, now: datetime, oldest: timedelta = OLDEST) -> str | None:
    """A line that warns of costs older than `oldest`, which it calls `where`; None for others, and for those whose
    age is unknown."""
    age = age_of(costs, now)
    if age is None or age <= oldest:
        return None
    return f"{where} was measured {in_words(age)} ago, and networks change; measure again if it may have changed"


def in_words(age: timedelta) -> str:
    """`5 minutes`, `3 hours`, `2 days`."""
    for seconds, word in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if age.total_seconds() >= 2 * seconds:
            return f"{int(age.total_seconds() // seconds)} {word}s"
    return "1 minute" if age.total_seconds() >= 60 else "less than a minute"


def utc_now() -> datetime:
    return datetime.now(UTC)


def stamp(moment: datetime) -> str:
    """As `measured_at` has it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
