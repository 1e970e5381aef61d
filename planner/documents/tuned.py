"""What a model ranked, what was then measured of it, and by how much the model was off: rank by model, measure the top.

Every pass that lets a measurement decide records it so in the provenance of its plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from treadle.planner.documents.explain import short
from treadle.planner.documents.scalars import Amount, Count, Name, Positive, PositiveAmount, Record


class RankedChoice(Record, frozen=True, kw_only=True):
    """One choice: what the model predicted it takes, in ns, and what it took where it was measured."""

    name: Name
    predicted_ns: Amount
    measured_ns: PositiveAmount | None = None
    excluded: Name | None = None
    """Why it may not be taken: it does not run here, or exceeds a limit."""

    @property
    def ratio(self) -> float | None:
        """Measured / predicted, where both are known."""
        return self.measured_ns / self.predicted_ns if self.measured_ns and self.predicted_ns else None


class Tuned(Record, frozen=True, kw_only=True):
    """Choices from the best predicted to the worst, of which the first `top` that run were measured."""

    what: Name
    """What was chosen, such as `schedule`."""
    model: Name
    """What predicted."""
    top: Positive
    ranked: tuple[RankedChoice, ...]
    chosen: Name
    unlisted: Count = 0
    """Further choices, predicted to be no better than the last of `ranked` and not tried."""

    @property
    def measured(self) -> tuple[RankedChoice, ...]:
        """Those with a measurement, best predicted first."""
        return tuple(each for each in self.ranked if each.measured_ns is not None)

    @property
    def place(self) -> int:
        """The place of the chosen one by prediction, from 1 on."""
        return 1 + next(place for place, each in enumerate(self.ranked) if each.name == self.chosen)

    @property
    def off(self) -> float | None:
        """The median of measured / predicted of what was measured, where both are known."""
        ratios = [each.ratio for each in self.measured if each.ratio]
        return median(ratios) if ratios else None

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield (path within the record, found, expected) for names that are not unique or name nothing."""
        names: set[str] = set()
        for place, each in enumerate(self.ranked):
            if each.name in names:
                yield f"$.ranked[{place}].name", f"{short(each.name)} twice", "every choice once"
            names.add(each.name)
        if self.chosen not in names:
            yield "$.chosen", short(self.chosen), "the name of a ranked choice"
