"""Whether a plan's records of ranked and measured choices are what the habit leaves behind.

It counts on its own: it does not reach `top.py`, which makes the records.
"""

from __future__ import annotations

from collections.abc import Iterator

from treadle.planner.documents.explain import short
from treadle.planner.documents.plan import Provenance
from treadle.planner.documents.tuned import Tuned


def check_tuned(made: Provenance) -> list[str]:
    """Findings on all records, one line each with its `$.path`."""
    cut = made.limit_fired or made.interrupted
    what = [tuned.what for tuned in made.tuned]
    twice = [
        f"$.provenance.tuned: {short(each)} was chosen twice" for each in dict.fromkeys(what) if what.count(each) > 1
    ]
    return twice + [
        f"$.provenance.tuned[{place}]{finding}"
        for place, tuned in enumerate(made.tuned)
        for finding in (*_names(tuned), *_order(tuned), *_tried(tuned, cut), *_chosen(tuned))
    ]


def _names(tuned: Tuned) -> Iterator[str]:
    for path, found, expected in tuned.problems():
        yield f"{path.removeprefix('$')}: {found}, expected {expected}"


def _order(tuned: Tuned) -> Iterator[str]:
    for place in range(1, len(tuned.ranked)):
        here, before = tuned.ranked[place].predicted_ns, tuned.ranked[place - 1].predicted_ns
        if here < before:
            yield f".ranked[{place}]: predicted {here:g} ns behind {before:g} ns, expected the best predicted first"
            return


def _tried(tuned: Tuned, cut: bool) -> Iterator[str]:
    """The first `top` that run were measured, no gap before the last of them and none behind it."""
    tried = [each.measured_ns is not None or each.excluded is not None for each in tuned.ranked]
    count = sum(tried)
    if not all(tried[:count]):
        place = tried.index(False)
        yield f".ranked[{place}]: not tried, but one that is predicted to be worse is"
        return
    measured = [place for place, each in enumerate(tuned.ranked) if each.measured_ns is not None]
    if len(measured) > tuned.top:
        yield f".ranked: {len(measured)} are measured, expected {tuned.top}"
    elif len(measured) == tuned.top and count > measured[-1] + 1:
        yield f".ranked[{count - 1}]: tried after the {tuned.top} that were to be measured"
    elif len(measured) < tuned.top and not cut and (count < len(tuned.ranked) or tuned.unlisted):
        yield f".ranked: {len(measured)} are measured, expected {tuned.top}: no limit fired, and more were ranked"


def _chosen(tuned: Tuned) -> Iterator[str]:
    allowed = {
        each.name: each.measured_ns for each in tuned.ranked if each.measured_ns is not None and each.excluded is None
    }
    if tuned.chosen not in allowed:
        yield f".chosen: {short(tuned.chosen)} was not measured or may not be taken"
    elif allowed[tuned.chosen] > (least := min(allowed.values())):
        yield f".chosen: {short(tuned.chosen)} took {allowed[tuned.chosen]:g} ns, the fastest {least:g} ns"
