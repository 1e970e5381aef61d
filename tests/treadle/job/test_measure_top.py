"""`measure_top` of a job reaches its parts where their processes are those of this machine, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.planner.passes.memory.extract.test_problem import perceptron
from tests.treadle.job.test_limit import JOB
from treadle.capture import costs as call_costs
from treadle.capture import graph, load
from treadle.cli.progress import ProgressLine
from treadle.job import costs, pipeline, runtime_costs
from treadle.job.part import JobInputs, JobPlan
from treadle.planner.documents.job import Job
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.store import load as load_document
from treadle.planner.documents.store import save
from treadle.planner.errors import InputError

NOTE = "  measure_top needs a run on a profile of CPUs: predictions decide here"


@pytest.mark.parametrize(
    ("asked", "hardware", "measure", "given", "noted"),
    [
        (0, "cpu-2x2", True, 0, False),
        (3, "cpu-2x2", True, 3, False),
        (3, "cpu-2x2", False, 0, True),
        (3, "switch4", True, 0, True),
        (0, "switch4", True, 0, False),
    ],
)
def test_parts_get_it(
    asked: int,
    hardware: str,
    measure: bool,
    given: int,
    noted: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load, "load_function", lambda *_: None)
    monkeypatch.setattr(graph, "capture", lambda *_: perceptron())
    monkeypatch.setattr(call_costs, "with_roofline", lambda trace, hardware: trace)
    monkeypatch.setattr(runtime_costs, "with_runtime_costs", lambda hardware, say, cache: hardware)
    monkeypatch.setattr(costs, "with_step_costs", lambda trace, *_: (trace, None))
    seen: list[JobInputs] = []

    def plans(parts: object, given: JobInputs, *_: object) -> None:
        seen.append(given)
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "_plans", plans)
    file = tmp_path / "job.json"
    save(replace(JOB, hardware=hardware, measure_top=asked), file)
    assert load_document(file, Job).measure_top == asked
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        pipeline.plan_job(file, tmp_path / "out", said.append, measure=measure)
    assert seen[0].measure_top == given
    assert (NOTE in said) is noted


def test_what_cannot_be_measured_is_said_of_the_key_of_the_job() -> None:
    def refused(*_: object) -> Plan:
        raise InputError("found 17 ranks", where="--measure")

    item = JobPlan("compression", "compression", refused)
    with pytest.raises(InputError, match=r"^measure_top: found 17 ranks$"):
        pipeline._planned(item, None, ProgressLine(lambda _: None, lambda: 0.0))
