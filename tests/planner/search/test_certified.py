"""A plan is certified by its checker; its certificate follows from its time and its bound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from treadle.planner.documents.plan import InputRef, Plan, Provenance
from treadle.planner.documents.scalars import Count, Decisions
from treadle.planner.errors import CheckFailed
from treadle.planner.search.bound import Argument, Bound
from treadle.planner.search.certified import certified


class Choice(Decisions, frozen=True, kw_only=True, tag_field="pass", tag="choice"):
    worker: Count


def check(decisions: Choice) -> list[str]:
    return [] if decisions.worker == 0 else ["$.decisions.worker: no such worker"]


BOUND = Bound(6000, Argument("path", {"first": 5000, "last": 1000}), "these pieces")
PROVENANCE = Provenance(tool="treadle", method="first")
INPUTS = {"hardware": InputRef(file="machine.yaml", digest="sha256:" + "0" * 64)}


def plan(decisions: Choice = Choice(worker=0), bound: Bound = BOUND, **others: object) -> Plan[Choice]:  # noqa: B008
    return certified(
        decisions,
        time_ns=8000,
        bound=bound,
        sentence=lambda bound: bound.argument.printed({"path": "the path takes {first} ns and {last} ns"}),
        check=check,
        provenance=PROVENANCE,
        inputs=INPUTS,
        **others,  # type: ignore[arg-type]
    )


def test_a_plan_carries_its_prediction_its_inputs_and_the_bound_with_its_terms():
    made = plan(peak_bytes=3)
    assert (made.decisions.worker, made.inputs, made.provenance) == (0, INPUTS, PROVENANCE)
    assert (made.prediction.time_us, made.prediction.peak_bytes) == (8.0, 3)
    proof = made.certificate
    assert (proof.verdict, proof.checker, proof.unit) == ("accepted", __name__, "ns")
    assert (proof.objective, proof.lower_bound, proof.gap, proof.optimal) == (8000, 6000, 0.25, False)
    assert proof.argument == "the path takes 5000 ns and 1000 ns"
    assert (proof.terms_ns, proof.scope) == ({"first": 5000, "last": 1000}, "these pieces")


def test_only_a_plan_that_meets_its_bound_is_optimal():
    proof = plan(bound=replace(BOUND, time_ns=8000)).certificate
    assert (proof.gap, proof.optimal) == (0.0, True)
    assert Bound(8001, Argument("solved")).of_plan(8000).time_ns == 8000


def test_a_plan_may_predict_the_time_of_its_program_instead_of_its_schedule():
    made = plan(predicted_us=9.5, unsimulated="too large")
    assert (made.prediction.time_us, made.certificate.objective, made.certificate.unsimulated) == (
        9.5,
        8000,
        "too large",
    )


def test_a_plan_that_fails_its_check_is_not_returned():
    with pytest.raises(CheckFailed, match="the choice plan fails its check") as raised:
        plan(Choice(worker=1))
    assert raised.value.findings == ("$.decisions.worker: no such worker",)
