"""Which predictions to trust: what models predicted of choices that were then measured, over all plans of a page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import NamedTuple

from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_time
from treadle.planner.documents.tuned import RankedChoice, Tuned
from treadle.report.page import Picture, Section, Table
from treadle.report.trust_figure import MOST_POINTS, ChoicePoint, ModelPoints, trust_svg

TEXT = (
    "A model ranked the choices, the best predicted were measured, and the fastest of those was taken. A factor that "
    "all choices share changes no ranking: trust a model where the points of each plan lie along the diagonal or "
    "parallel to it."
)
CAPTION = (
    "One point for each choice that was measured{}; full ones were taken. Above the diagonal a choice was slower than "
    "predicted."
)


class PlanRecord(NamedTuple):
    """What was measured for one choice of the plan `name`."""

    name: str
    tuned: Tuned


@dataclass(frozen=True)
class ModelTrust:
    """The records of one model, and how far its predictions can be trusted."""

    model: str
    records: tuple[PlanRecord, ...]

    @property
    def measured(self) -> list[RankedChoice]:
        return [each for record in self.records for each in record.tuned.measured]

    @property
    def off(self) -> float | None:
        """The median of measured / predicted."""
        ratios = [each.ratio for each in self.measured if each.ratio and math.isfinite(each.ratio)]
        return median(ratios) if ratios else None

    @property
    def correlation(self) -> float | None:
        """Kendall's rank correlation of pairs within a record: 1 where the better predicted one always was faster, -1
        where it never was. None where there is no pair with two different predictions and times."""
        signs = [
            math.copysign(
                1, (one.predicted_ns - other.predicted_ns) * ((one.measured_ns or 0) - (other.measured_ns or 0))
            )
            for record in self.records
            for one, other in combinations(record.tuned.measured[:MOST_POINTS], 2)
            if one.predicted_ns != other.predicted_ns and one.measured_ns != other.measured_ns
        ]
        return sum(signs) / len(signs) if signs else None

    @property
    def first_taken(self) -> int:
        """Records in which the best predicted choice was the fastest."""
        return sum(record.tuned.place == 1 for record in self.records)


def trust_sections(plans: Mapping[str, Plan]) -> list[Section]:
    """The section of all measured choices of `plans`; none where nothing was measured."""
    models = list(trusts(plans))
    if not models:
        return []
    points = [ModelPoints(_legend(each), tuple(_points(each.records))) for each in models]
    drawn = sum(len(each.points) for each in points)
    pictures: tuple[Picture, ...] = ()
    if drawn:
        few = f", up to {MOST_POINTS:,} of a model" if any(len(each.measured) > MOST_POINTS for each in models) else ""
        pictures = (Picture(trust_svg(points), CAPTION.format(few)),)
    return [Section("Which predictions to trust", TEXT, (_models(models), _choices(models)), pictures)]


def trusts(plans: Mapping[str, Plan]) -> Iterator[ModelTrust]:
    """The models of all plans, in the order of their names."""
    records: dict[str, list[PlanRecord]] = {}
    for name, plan in plans.items():
        for tuned in plan.provenance.tuned:
            records.setdefault(tuned.model, []).append(PlanRecord(name, tuned))
    for model in sorted(records):
        yield ModelTrust(model, tuple(records[model]))


def _models(models: Iterable[ModelTrust]) -> Table:
    head = (
        "model",
        "plans",
        "choices measured",
        "measured / predicted, median",
        "rank correlation",
        "best predicted was the fastest",
    )
    rows = tuple(
        (
            each.model,
            str(len({record.name for record in each.records})),
            str(len(each.measured)),
            _figure(each.off),
            _figure(each.correlation, "+.2f"),
            f"{each.first_taken} of {len(each.records)}",
        )
        for each in models
    )
    return Table(head, rows, "Models, by what their best predicted choices took.")


def _choices(models: Iterable[ModelTrust]) -> Table:
    head = ("plan", "what", "ranked", "measured", "taken", "its place by prediction", "took", "best predicted took")
    rows = tuple(
        (
            record.name,
            tuned.what,
            f"{len(tuned.ranked) + tuned.unlisted:,}",
            str(len(tuned.measured)),
            tuned.chosen,
            str(tuned.place),
            format_time(tuned.ranked[tuned.place - 1].measured_ns or 0),
            "it was not measured" if (first := tuned.ranked[0].measured_ns) is None else format_time(first),
        )
        for each in models
        for record in each.records
        for tuned in (record.tuned,)
    )
    return Table(head, rows, "What was chosen by measurement.", words=True)


def _figure(value: float | None, spelling: str = ".3g") -> str:
    return "-" if value is None else format(value, spelling)


def _legend(trust: ModelTrust) -> str:
    off, correlation = _figure(trust.off), _figure(trust.correlation, "+.2f")
    return f"{trust.model}: measured / predicted {off}, rank correlation {correlation}"


def _points(records: Iterable[PlanRecord]) -> list[ChoicePoint]:
    """What can be drawn on logarithmic axes."""
    return [
        ChoicePoint(each.predicted_ns, each.measured_ns, f"{name}: {each.name}", tuned.chosen == each.name)
        for name, tuned in records
        for each in tuned.measured
        if each.predicted_ns > 0 and each.measured_ns
    ][:MOST_POINTS]
