"""What a job's report says of the quality of each plan, whatever pass made it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.planner import samples
from treadle.job.part import JobInputs
from treadle.job.pipeline import Planned
from treadle.job.report import proved
from treadle.planner.documents.plan import Plan


def planned() -> Planned:
    given = JobInputs(samples.TRACE, samples.HARDWARE, {"sketch": samples.SKETCH}, None)
    return Planned(samples.JOB, given, (), Path("job"))


@pytest.mark.parametrize("kind", ["memory plan", "swap plan", "fusion plan"])
def test_plans_of_every_pass_have_a_quality(kind: str) -> None:
    plan = samples.DOCUMENTS[kind]
    assert isinstance(plan, Plan)
    assert proved(planned(), plan).startswith(("optimal", "gap"))
