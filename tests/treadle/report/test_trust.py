"""Predicted against measured over all plans of a page: figures by hand, and pages that hostile plans cannot break."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import pytest

from tests.planner import samples
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.tuned import RankedChoice, Tuned
from treadle.report.page import Page, render
from treadle.report.trust import trust_sections, trusts
from treadle.report.trust_figure import MOST_POINTS


def tuned(model: str, times: Sequence[tuple[float, float]], chosen: int, what: str = "schedule") -> Tuned:
    ranked = tuple(RankedChoice(name=f"c{at}", predicted_ns=p, measured_ns=m) for at, (p, m) in enumerate(times))
    return Tuned(what=what, model=model, top=len(times), ranked=ranked, chosen=f"c{chosen}")


def with_tuned(*records: Tuned) -> Plan:
    plan = samples.MEMORY_PLAN
    return msgspec.structs.replace(plan, provenance=msgspec.structs.replace(plan.provenance, tuned=records))


PLANS = {
    "one": with_tuned(tuned("prices", [(10, 20), (20, 30), (30, 90)], 0)),
    "two": with_tuned(
        tuned("prices", [(100, 300), (200, 250)], 1), tuned("simulator", [(5e3, 4e3)], 0, "protocol <&> more")
    ),
    "three": samples.MEMORY_PLAN,
}


def test_figures_of_a_model_by_hand() -> None:
    prices, simulator = trusts(PLANS)
    assert (prices.model, simulator.model) == ("prices", "simulator")
    assert prices.off == 2.0, "the median of 2, 1.5, 3, 3 and 1.25"
    assert prices.correlation == 0.5, "3 pairs in order, 1 in the other"
    assert prices.first_taken == 1
    assert (simulator.off, simulator.correlation, simulator.first_taken) == (0.8, None, 1)


def test_a_page_has_one_picture_and_its_tables() -> None:
    (section,) = trust_sections(PLANS)
    models, choices = section.tables
    assert section.title == "Which predictions to trust"
    assert models.rows == (
        ("prices", "2", "5", "2", "+0.50", "1 of 2"),
        ("simulator", "1", "1", "0.8", "-", "1 of 1"),
    )
    assert choices.rows[1] == ("two", "schedule", "2", "2", "c1", "2", "250 ns", "300 ns")
    (picture,) = section.pictures
    assert len(re.findall("<title>", picture.svg)) == 6
    assert "prices: measured / predicted 2, rank correlation +0.50" in picture.svg
    assert "one: c0\npredicted 10 ns, measured 20 ns, taken" in picture.svg
    assert picture.svg == trust_sections(PLANS)[0].pictures[0].svg, "the same bytes"
    text = render(Page("title", "subtitle", sections=(section,)))
    assert "protocol &lt;&amp;&gt; more" in text


def test_nothing_is_said_where_nothing_was_measured() -> None:
    assert trust_sections({"three": PLANS["three"]}) == []


HOSTILE = {
    "extreme times": tuned("m", [(1e-320, 1e30), (1e-300, 1e-320), (1e30, 1e-9)], 1),
    "no prediction": tuned("m", [(0.0, 5.0)], 0),
    "equal times": tuned("m", [(5.0, 5.0), (5.0, 5.0)], 0),
    "long names": tuned("_" + "$x^2$ " * 600, [(1.0, 2.0)], 0),
    "markup": tuned("</svg><script>alert(1)</script>", [(1.0, 2.0)], 0),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_record_is_drawn_as_text(name: str) -> None:
    (section,) = trust_sections({"plan": with_tuned(HOSTILE[name])})
    text = render(Page("title", "subtitle", sections=(section,)))
    assert "<script>alert" not in text
    assert len(section.pictures) == (name != "no prediction")
    assert "nan" not in "".join(picture.svg for picture in section.pictures).lower()


def test_a_model_with_many_points_is_drawn_in_part() -> None:
    times = [(float(at), float(at)) for at in range(1, MOST_POINTS + 50)]
    (section,) = trust_sections({"plan": with_tuned(tuned("m", times, 0))})
    assert section.pictures[0].svg.count("<title>") == MOST_POINTS
    assert f"up to {MOST_POINTS:,} of a model" in section.pictures[0].caption
