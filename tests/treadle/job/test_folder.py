"""A job's folder may hold an older job: what is replaced and what stays is said."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from tests.planner import samples
from treadle.job import pipeline
from treadle.job.part import JobInputs, JobPart
from treadle.job.pipeline import Planned, PlannedPart
from treadle.planner.documents.store import save


def replaced(folder: Path, entry: str | None) -> list[str]:
    """The lines that a job of `model:step` says where the folder holds a job of `entry`."""
    save(replace(samples.TRACE, entry=entry), folder / "trace.json")
    said: list[str] = []
    pipeline._say_replaced(folder, samples.JOB, said.append)
    return said


def test_a_job_of_another_model_is_named_before_it_is_replaced(tmp_path: Path) -> None:
    assert samples.JOB.model == "model:step"
    assert replaced(tmp_path, "model:step") == []
    assert replaced(tmp_path, None) == []
    assert replaced(tmp_path, "other:step") == [f"{tmp_path} holds the job of other:step, which this one replaces"]


def test_plans_of_an_older_job_are_named_where_they_stay(tmp_path: Path) -> None:
    for name in ("memory", "allreduce-0", "allreduce-1"):
        save(samples.MEMORY_PLAN, tmp_path / f"{name}.plan.json")
    given = JobInputs(samples.TRACE, samples.HARDWARE, {}, None)
    plans = {"memory": samples.MEMORY_PLAN, "allreduce-0": samples.COLLECTIVE_PLAN}
    said: list[str] = []
    pipeline._say_stays(Planned(samples.JOB, given, (PlannedPart(NoPart(), plans),), tmp_path), said.append)
    assert said == [f"{tmp_path} keeps plans of an older job, which do not fit this one: allreduce-1"]


class NoPart(JobPart):
    def plans(self, given: JobInputs) -> tuple[()]:
        return ()
