"""Records of ranked and measured choices that are broken on purpose."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.planner import samples
from treadle.check.plan import check_plan
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan, Provenance
from treadle.planner.documents.tuned import RankedChoice, Tuned
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.search.bound import Argument, Bound
from treadle.planner.search.certified import certified
from treadle.planner.search.check_tuned import check_tuned

RANKED: tuple[dict[str, Any], ...] = (
    {"name": "a", "predicted_ns": 10.0, "measured_ns": 30.0},
    {"name": "b", "predicted_ns": 11.0, "excluded": "it does not run here"},
    {"name": "c", "predicted_ns": 12.0, "measured_ns": 20.0},
    {"name": "d", "predicted_ns": 13.0, "measured_ns": 5.0, "excluded": "over the limit"},
    {"name": "e", "predicted_ns": 14.0},
    {"name": "f", "predicted_ns": 15.0},
)
SOUND = Tuned(what="schedule", model="prices", top=3, ranked=tuple(RankedChoice(**each) for each in RANKED), chosen="c")


def made(*records: Tuned, **facts: Any) -> Provenance:
    return Provenance(tool="tool", method="method", tuned=records, **facts)


def with_choice(place: int, **facts: Any) -> Tuned:
    ranked = list(SOUND.ranked)
    ranked[place] = msgspec.structs.replace(ranked[place], **facts)
    return msgspec.structs.replace(SOUND, ranked=tuple(ranked))


def test_a_sound_record_is_accepted() -> None:
    assert check_tuned(made(SOUND)) == []
    assert (SOUND.place, SOUND.off) == (3, 20 / 12)


BROKEN: dict[str, tuple[Tuned, str]] = {
    "the slower one": (msgspec.structs.replace(SOUND, chosen="a"), "a' took 30 ns, the fastest 20 ns"),
    "an excluded one": (msgspec.structs.replace(SOUND, chosen="d"), "d' was not measured or may not be taken"),
    "one that was not measured": (msgspec.structs.replace(SOUND, chosen="e"), "e' was not measured"),
    "one that does not run": (msgspec.structs.replace(SOUND, chosen="b"), "b' was not measured"),
    "a name of nothing": (msgspec.structs.replace(SOUND, chosen="g"), "expected the name of a ranked choice"),
    "a faster one": (with_choice(0, measured_ns=19.0), "c' took 20 ns, the fastest 19 ns"),
    "not ascending": (with_choice(1, predicted_ns=9.0), "ranked[1]: predicted 9 ns behind 10 ns"),
    "not ascending at the end": (with_choice(5, predicted_ns=1.0), "ranked[5]: predicted 1 ns"),
    "one name twice": (with_choice(1, name="c"), "'c' twice"),
    "more than the top": (msgspec.structs.replace(SOUND, top=2), "3 are measured, expected 2"),
    "fewer than the top": (msgspec.structs.replace(SOUND, top=4), "3 are measured, expected 4"),
    "a gap": (with_choice(5, measured_ns=90.0), "ranked[4]: not tried"),
    "a gap at the front": (with_choice(0, measured_ns=None), "ranked[0]: not tried"),
    "an exclusion behind the last": (with_choice(4, excluded="slow"), "ranked[4]: tried after the 3"),
    "unlisted ones that were not tried": (
        msgspec.structs.replace(SOUND, ranked=SOUND.ranked[:4], top=4, unlisted=9),
        "3 are measured, expected 4",
    ),
    "nothing ranked": (msgspec.structs.replace(SOUND, ranked=()), "expected the name of a ranked choice"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_record_is_found(name: str) -> None:
    record, expected = BROKEN[name]
    findings = check_tuned(made(SOUND, msgspec.structs.replace(record, what="another")))
    assert any(expected in finding for finding in findings)
    assert all(finding.startswith("$.provenance.tuned[1]") for finding in findings)


def test_fewer_are_measured_where_a_limit_fired_or_all_were_tried() -> None:
    few = msgspec.structs.replace(SOUND, top=4)
    assert check_tuned(made(few, limit_fired=True)) == check_tuned(made(few, interrupted=True)) == []
    assert check_tuned(made(msgspec.structs.replace(few, ranked=SOUND.ranked[:4]))) == []


def test_one_thing_is_chosen_once() -> None:
    assert check_tuned(made(SOUND, SOUND)) == ["$.provenance.tuned: 'schedule' was chosen twice"]


def test_every_plan_is_checked_for_it() -> None:
    plan = samples.MEMORY_PLAN
    broken = msgspec.structs.replace(SOUND, chosen="a")
    assert check_plan(_with(plan, SOUND)) == check_plan(plan)
    assert check_plan(_with(plan, broken))[-1].startswith("$.provenance.tuned[0].chosen")
    with pytest.raises(CheckFailed, match="fails its check"):
        certified(
            plan.decisions,
            time_ns=1,
            bound=Bound(1, Argument("share")),
            sentence=lambda bound: "none",
            check=lambda decisions: [],
            inputs={},
            provenance=made(broken),
        )


@pytest.mark.parametrize(("facts", "expected"), [({"chosen": "g"}, r"tuned\[0\].chosen"), ({"ranked": ()}, "chosen")])
def test_a_plan_whose_record_names_nothing_is_not_read(facts: dict[str, Any], expected: str) -> None:
    text = store.dumps(_with(samples.MEMORY_PLAN, SOUND))
    assert store.loads(text, "plan.json", Plan).provenance.tuned == (SOUND,)
    hostile = msgspec.structs.replace(SOUND, **facts)
    raw = msgspec.json.decode(text)
    raw["provenance"]["tuned"] = [msgspec.to_builtins(hostile)]
    with pytest.raises(InputError, match=expected):
        store.loads(msgspec.json.encode(raw).decode(), "plan.json", Plan)


def _with(plan: Plan, record: Tuned) -> Plan:
    return msgspec.structs.replace(plan, provenance=msgspec.structs.replace(plan.provenance, tuned=(record,)))
