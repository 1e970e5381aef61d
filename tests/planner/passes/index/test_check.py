"""The checker of index plans refuses each kind of corruption, and edits at random."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.planner.passes.index.index_plans import PROBLEM, by_hand, measurement, random_problem, small_plan, unmeasured
from treadle.check.plan import check_plan
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InputError
from treadle.planner.passes.index.check import check
from treadle.planner.passes.index.configurations import FragmentedLog, grid
from treadle.planner.passes.index.decisions import IndexDecisions
from treadle.planner.passes.index.planning import plan_index

Change = Callable[[IndexDecisions], IndexDecisions]


def field(**changes: Any) -> Change:
    return lambda decisions: replace(decisions, **changes)


def problem(**changes: Any) -> Change:
    return lambda decisions: replace(decisions, problem=replace(decisions.problem, **changes))


def candidate(place: int, **changes: Any) -> Change:
    def changed(decisions: IndexDecisions) -> IndexDecisions:
        candidates = [*decisions.problem.candidates]
        candidates[place] = replace(candidates[place], **changes)
        return problem(candidates=tuple(candidates))(decisions)

    return changed


def run(place: int, **changes: Any) -> Change:
    measured = PROBLEM.candidates[place].measured
    assert measured is not None
    return candidate(place, measured=replace(measured, **changes))


def without(place: int) -> Change:
    rest = (*PROBLEM.candidates[:place], *PROBLEM.candidates[place + 1 :])
    return problem(candidates=rest)


OTHER = FragmentedLog(fragment_keys=4, most_fragments=1, new_fragments=1)
CORRUPTIONS: dict[str, tuple[Change, str]] = {
    "the second best as the winner": (
        field(chosen=grid()[4], time_ns=360, bytes=2400, second=grid()[1], second_ns=350),
        "chosen: found gapped array 2/2, expected gapped array 1/8, which takes 350 ns",
    ),
    "a winner that was not measured": (
        field(chosen=grid()[0], time_ns=900, bytes=None),
        "chosen: found gapped array 1/2, expected one that was measured",
    ),
    "a winner over the memory": (
        field(chosen=grid()[5], time_ns=310, bytes=4000),
        "chosen: found gapped array 2/8, expected one within the memory ratio 1.5",
    ),
    "a winner that is no candidate": (field(chosen=OTHER), "chosen: found another configuration, expected one of the"),
    "a winner of the grid that is no candidate": (field(chosen=grid()[50]), "chosen: found another configuration"),
    "the winner as its own second": (
        field(second=grid()[1], second_ns=350),
        "second: found gapped array 1/8, expected gapped array 2/2, which takes 360 ns",
    ),
    "the third as the second": (
        field(second=grid()[2], second_ns=420),
        "second: found gapped array 1/32, expected gapped array 2/2, which takes 360 ns",
    ),
    "a second over the memory": (
        field(second=grid()[5], second_ns=310),
        "second: found gapped array 2/8, expected one within the memory ratio",
    ),
    "a second that was not measured": (
        field(second=grid()[3], second_ns=800),
        "second: found gapped array 1/128, expected one that was measured",
    ),
    "a second that is no candidate": (field(second=OTHER), "second: found another configuration"),
    "no second": (field(second=None, second_ns=None), "second: found none, expected gapped array 2/2"),
    "a second without a time": (field(second_ns=None), "second_ns: found None, expected a time if, and only if"),
    "a time without a second": (field(second=None), "second_ns: found 360, expected a time if, and only if"),
    "another time": (field(time_ns=349), "time_ns: found 349, expected 350, its windows together"),
    "the predicted time": (field(time_ns=400), "time_ns: found 400, expected 350"),
    "another time of the second": (field(second_ns=361), "second_ns: found 361, expected 360"),
    "other bytes": (field(bytes=2499), "bytes: found 2499, expected 2500, as measured"),
    "no bytes": (field(bytes=None), "bytes: found None, expected 2500"),
    "none over the memory": (field(over_memory=0), "over_memory: found 0, expected 1"),
    "more over the memory": (field(over_memory=2), "over_memory: found 2, expected 1"),
    "a ratio that the winner breaks": (
        problem(max_memory_ratio=1.3),
        "chosen: found gapped array 1/8, expected one within the memory ratio 1.3",
    ),
    "a ratio that allows a faster one": (problem(max_memory_ratio=3.0), "over_memory: found 1, expected 0"),
    "no ratio": (problem(max_memory_ratio=None), "over_memory: found 1, expected 0"),
    "fewer keys at the end": (problem(keys_at_end=119), "keys_at_end: found 119, expected 120, as the workload"),
    "a window that took longer": (run(1, windows_ns=(87, 87, 87, 90)), "time_ns: found 350, expected 351"),
    "a window less": (run(1, windows_ns=(87, 87, 176)), "candidates[2].measured.windows_ns: found 4 windows, expected"),
    "no window": (run(4, windows_ns=()), "candidates[4].measured.windows_ns: found 0 windows, expected 1 to 40"),
    "a rival that was faster": (
        run(2, windows_ns=(87, 87, 87, 88)),
        "chosen: found gapped array 1/8, expected gapped array 1/32, which takes 349 ns",
    ),
    "a rival as fast that was predicted to be better": (
        run(4, windows_ns=(87, 87, 87, 89)),
        "second_ns: found 360, expected 350",
    ),
    "fewer measured than the top": (candidate(1, measured=None), "candidates: found 3 measurements, expected 4, with"),
    "more measured than the top": (
        candidate(3, measured=measurement(800)),
        "candidates: found 5 measurements, expected 4",
    ),
    "one measured that is not of the best": (
        lambda decisions: candidate(0, measured=measurement(900))(candidate(1, measured=None)(decisions)),
        "candidates[0].measured: found one of number 6 by prediction, none of number 4, expected none, since",
    ),
    "predictions in another order": (
        candidate(0, predicted_ns=50.0),
        "candidates[4].measured: found one of number 2 by prediction, none of number 1, expected none",
    ),
    "a higher top": (problem(top=5), "candidates: found 4 measurements, expected 5, with `top` 5"),
    "no top": (problem(top=0), "candidates: found 4 measurements, expected 0, with `top` 0"),
    "cut short with all measured": (problem(cut_short=True), "cut_short: found true with 4 of 4 measured, expected f"),
    "one that failed after the last of the top": (
        candidate(3, failed="no memory"),
        "candidates[3].failed: found one that was tried, expected none after 4 were measured",
    ),
    "one that failed after one that was not tried": (
        candidate(0, failed="no memory"),
        "candidates[0].measured: found one of number 6 by prediction, none of number 5",
    ),
    "one that failed and was measured": (
        candidate(4, failed="no memory"),
        "candidates[4].failed: found a reason, expected none, since it was measured",
    ),
    "one that failed of the top": (
        candidate(1, measured=None, failed="no memory"),
        "candidates: found 3 measurements, expected 4",
    ),
    "a prediction of nothing": (candidate(0, predicted_ns=0.0), "candidates[0].predicted_ns: found 0.0, expected a"),
    "a candidate twice": (candidate(0, configuration=grid()[1]), "candidates[1]: found second gapped array 1/8"),
    "a candidate less": (without(1), "chosen: found another configuration, expected one of the candidates"),
    "an operation more": (problem(lookups=21), "whole: found 40, expected at least the 41 operations"),
    "inserts that are not drawn": (problem(inserts=21, lookups=19), "inserts: found 21, expected at most 20"),
    "deletes that are not drawn": (problem(lookups=19, deletes=1), "deletes: found 1, expected 0, as the workload"),
    "another share of inserts": (
        problem(workload=replace(PROBLEM.workload, insert_share=0.25)),
        "inserts: found 20, expected at most 10, as the workload is drawn",
    ),
    "more loaded keys": (problem(bulk=101), "bulk: found 101, expected 100, as the workload is drawn"),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corrupted_plan_is_refused(name: str) -> None:
    change, message = CORRUPTIONS[name]
    changed = change(by_hand())
    assert changed != by_hand()
    findings = check(changed)
    assert any(message in line for line in findings), findings
    assert all(line.startswith("$.decisions.") and "\n" not in line for line in findings)
    assert check(by_hand()) == []


UNMEASURED: dict[str, tuple[Change, str]] = {
    "another winner": (
        field(chosen=grid()[1], time_ns=401),
        "chosen: found gapped array 1/8, expected gapped array 1/",
    ),
    "a time below the prediction": (field(time_ns=300), "time_ns: found 300, expected 301, its prediction"),
    "bytes": (field(bytes=5), "bytes: found 5, expected none, since nothing was measured"),
    "a loop": (problem(loop_ns=5), "loop_ns: found 5, expected 0, since nothing was measured"),
    "a ratio": (problem(max_memory_ratio=2.0), "max_memory_ratio: found 2 with nothing measured"),
    "cut short": (problem(cut_short=True), "cut_short: found true with 0 of 0 measured, expected false"),
}


@pytest.mark.parametrize("name", UNMEASURED)
def test_a_corrupted_plan_without_measurements_is_refused(name: str) -> None:
    change, message = UNMEASURED[name]
    findings = check(change(unmeasured().decisions))
    assert any(message in line for line in findings), findings


def record(**changes: Any) -> Callable[[Plan[IndexDecisions]], Plan[IndexDecisions]]:
    def changed(plan: Plan[IndexDecisions]) -> Plan[IndexDecisions]:
        tuned = replace(plan.provenance.tuned[0], **changes)
        return replace(plan, provenance=replace(plan.provenance, tuned=(tuned,)))

    return changed


def ranked(place: int, **changes: Any) -> Callable[[Plan[IndexDecisions]], Plan[IndexDecisions]]:
    rows = [*small_plan().provenance.tuned[0].ranked]
    rows[place] = replace(rows[place], **changes)
    return record(ranked=tuple(rows))


def provenance(**changes: Any) -> Callable[[Plan[IndexDecisions]], Plan[IndexDecisions]]:
    return lambda plan: replace(plan, provenance=replace(plan.provenance, **changes))


def certificate(**changes: Any) -> Callable[[Plan[IndexDecisions]], Plan[IndexDecisions]]:
    return lambda plan: replace(plan, certificate=replace(plan.certificate, **changes))


RECORDS: dict[str, tuple[Callable[[Plan[IndexDecisions]], Plan[IndexDecisions]], str]] = {
    "no record": (provenance(tuned=()), "provenance.tuned: found 0 records, expected one, of leaves"),
    "two records": (provenance(tuned=small_plan().provenance.tuned * 2), "provenance.tuned: found 2 records"),
    "a record of something else": (record(what="schedule"), "tuned[0].what: found schedule, expected leaves"),
    "another model": (record(model="dice"), "tuned[0].model: found dice, expected evaluator"),
    "another top": (record(top=5), "tuned[0].top: found 5, expected 4"),
    "another chosen one": (
        record(chosen="gapped array 2/2"),
        "tuned[0].chosen: found gapped array 2/2, expected gapped",
    ),
    "a row less": (
        record(ranked=small_plan().provenance.tuned[0].ranked[:-1]),
        "tuned[0].unlisted: found 0, expected 1",
    ),
    "another prediction": (ranked(0, predicted_ns=99.0), "tuned[0].ranked[0].predicted_ns: found 99.0, expected 100.0"),
    "another measurement": (ranked(2, measured_ns=421), "tuned[0].ranked[2].measured_ns: found 421, expected 420"),
    "a measurement that was not made": (ranked(4, measured_ns=5), "ranked[4].measured_ns: found 5, expected None"),
    "one that is not excluded": (ranked(1, excluded=None), "ranked[1].excluded: found none, expected a reason"),
    "one that is excluded": (ranked(2, excluded="ugly"), "ranked[2].excluded: found ugly, expected none"),
    "another name": (ranked(5, name="gapped array"), "ranked[5].name: found gapped array, expected gapped array 1/2"),
    "a limit that did not fire": (
        provenance(limit_fired=True),
        "a limit or Ctrl-C ended the work, the problem has cut",
    ),
    "a bound above the loop": (
        certificate(lower_bound=8.0, terms_ns={}, gap=342 / 350),
        "certificate: lower bound 8 ns, reading the operations was measured to take 7 ns",
    ),
    "a bound above the time": (certificate(lower_bound=351.0), "certificate: lower bound 351 above the objective 350"),
    "another objective": (certificate(objective=349.0), "certificate: objective 349 ns, the plan takes 350 ns"),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_certificate_or_record_that_is_not_of_the_decisions_is_refused(name: str) -> None:
    change, message = RECORDS[name]
    assert check_plan(small_plan()) == []
    findings = check_plan(change(small_plan()))
    assert any(message in line for line in findings), findings


def leaves_of(raw: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all numbers, texts and truths in plain values."""
    if isinstance(raw, dict | list):
        items = raw.items() if isinstance(raw, dict) else enumerate(raw)
        return [each for key, value in items for each in leaves_of(value, (*path, key))]
    return [path]


@given(seed=st.integers(0, 10**9))
def test_a_random_edit_is_refused_or_the_choice_is_the_same(seed: int) -> None:
    """What remains accepted was planned as well of the edited problem."""
    rng = random.Random(seed)
    raw = msgspec.json.decode(store.dumps(plan_index(random_problem(rng))))
    *steps, last = rng.choice(leaves_of(raw["decisions"]))
    place = raw["decisions"]
    for step in steps:
        place = place[step]
    if isinstance(place[last], bool) or not isinstance(place[last], int | float):
        return
    place[last] = type(place[last])(max(0, place[last] + rng.choice((-100, -2, -1, 1, 2, 100))))
    try:
        edited = store.loads(msgspec.json.encode(raw).decode(), "plan.json", Plan).decisions
    except InputError:
        return
    if not check(edited):
        assert edited == plan_index(edited.problem).decisions
