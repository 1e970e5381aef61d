"""The collective pass in a job: messages whose programs are measured where the job asks for it."""

from __future__ import annotations

import pytest

from tests.planner.passes.collective.test_measured import HERE, SIZE, SKETCH, Made
from tests.planner.passes.memory.extract.test_problem import perceptron
from treadle.job.part import JobInputs
from treadle.passes.collective.job import _plan
from treadle.planner.graph.gradients import Bucket
from treadle.runtime.collective import turns

BUCKET = Bucket(("weight",), SIZE)


def given(top: int) -> JobInputs:
    return JobInputs(perceptron(), HERE, {"sketch": SKETCH}, None, measure_top=top)


def test_a_job_that_asks_for_it_measures_the_programs_of_its_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measuring(top, hardware, clock):
        asked.append(top)
        return Made(top).measuring

    monkeypatch.setattr(turns, "collective_measuring", measuring)
    assert _plan(BUCKET, given(0), None, lambda _: None).provenance.tuned == ()
    assert asked == []
    (tuned,) = _plan(BUCKET, given(2), None, lambda _: None).provenance.tuned
    assert asked == [2]
    assert tuned.chosen == tuned.ranked[1].name
