"""What a model ranked, what was then measured of it, and by how much the model was off: rank by model, measure the top.

Every pass that lets a measurement decide records it so in the provenance of its plan.
"""

from __future__ import annotations

from statistics import median

from treadle.planner.documents.scalars import Amount, Name, Positive, PositiveAmount, Record


class RankedChoice(Record, frozen=True, kw_only=True):
    """One choice: what the model predicted it takes, in ns, and what it took where it was measured."""

    name: Name
    predicted_ns: Amount
    measured_ns: PositiveAmount | None = None
    excluded: Name | None = None
    """Why it may not be taken: it does not run here, or it is over a limit."""


class Tuned(Record, frozen=True, kw_only=True):
    """Choices from the best predicted to the worst, of which the first `top` that run were measured."""

    what: Name
    """What was chosen, such as `schedule`."""
    model: Name
    """What predicted."""
    top: Positive
    ranked: tuple[RankedChoice, ...]
    chosen: Name

    @property
    def measured(self) -> tuple[RankedChoice, ...]:
        """Those with a measurement, best predicted first."""
        return tuple(each for each in self.ranked if each.measured_ns is not None)

    @property
    def off(self) -> float | None:
        """The median of measured / predicted of what was measured, where both are known."""
        ratios = [
            each.measured_ns / each.predicted_ns for each in self.measured if each.measured_ns and each.predicted_ns
        ]
        return median(ratios) if ratios else None
