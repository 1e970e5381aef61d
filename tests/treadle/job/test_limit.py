"""The time limit of a job: its parts share what is left, and the one whose share was too short is named."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.planner import samples
from tests.planner.passes.memory.extract.test_problem import perceptron
from treadle.capture import costs as call_costs
from treadle.capture import graph, load
from treadle.job import costs, pipeline, runtime_costs
from treadle.job.part import JobInputs, PartPrediction
from treadle.passes import room
from treadle.passes.collective import job as collective_job
from treadle.planner.documents.job import Job
from treadle.planner.documents.store import FORMS, save
from treadle.planner.documents.trace import Trace
from treadle.planner.graph.gradients import Bucket
from treadle.planner.passes import ROOMS
from treadle.planner.passes.collective import planning as collective
from treadle.planner.passes.collective.job import CollectiveJob
from treadle.planner.passes.memory import planning as memory
from treadle.planner.passes.memory.job import MemoryJob
from treadle.planner.search.clock import Clock

JOB = FORMS[Job](
    version=1,
    name="tiny",
    model="small:step",
    hardware="cpu-2x2",
    memory=MemoryJob(budget="0.7x"),
    collective=CollectiveJob(sketch="ring", buckets=2),
)


def test_parts_share_the_limit_and_the_one_it_ended_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    given: list[tuple[float, float | None]] = []
    fired = itertools.cycle([False, True, False])

    def make(clock: Clock, limit_s: float | None) -> SimpleNamespace:
        given.append((clock.left_s, limit_s))
        now[0] += 10.0
        return SimpleNamespace(provenance=SimpleNamespace(limit_fired=next(fired), interrupted=False, tuned=()))

    monkeypatch.setattr(memory, "plan_memory", lambda *_, clock, options, **__: make(clock, options.time_limit_s))
    monkeypatch.setattr(
        collective, "plan_collective", lambda *_, clock, options, **__: make(clock, options.limits.time_s)
    )
    monkeypatch.setattr(collective_job, "buckets_of", lambda *_: [Bucket(("a",), 4), Bucket(("b",), 4)])
    monkeypatch.setattr(pipeline, "_quality", lambda plan: "fine")
    said: list[str] = []
    clock = Clock(100.0, 0.0, lambda: now[0], limit_s=100.0)
    parts = [part for name in ROOMS if (part := room(name).job_part(JOB, "job.yaml"))]
    for part in parts:
        monkeypatch.setattr(type(part), "prediction", lambda *_: PartPrediction())
    inputs = JobInputs(perceptron(), samples.HARDWARE, {"sketch": samples.SKETCH}, clock.limit_s)
    planned = pipeline._plans(parts, inputs, said.append, clock)
    assert [list(part.plans) for part in planned] == [["memory"], ["allreduce-0", "allreduce-1"]]
    assert [limit for _, limit in given] == [100.0] * 3
    assert [left for left, _ in given] == pytest.approx([90 / 3, 80 / 2, 70 / 1])
    (line,) = (at for at, text in enumerate(said) if "share of the time limit" in text)
    assert said[line - 2].startswith("plan allreduce-0")


def test_measuring_is_not_part_of_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 25.0])
    monkeypatch.setattr(pipeline, "time", SimpleNamespace(monotonic=lambda: next(times)))
    monkeypatch.setattr(load, "load_function", lambda *_: None)
    monkeypatch.setattr(graph, "capture", lambda *_: perceptron())
    monkeypatch.setattr(call_costs, "with_roofline", lambda trace, hardware: trace)

    def measured(trace: Trace, *rest: Any) -> tuple[Trace, None]:
        rest[-2]("measure the step")
        return trace, None

    monkeypatch.setattr(runtime_costs, "with_runtime_costs", lambda hardware, say, cache: hardware)
    monkeypatch.setattr(costs, "with_step_costs", measured)
    clocks: list[Clock] = []

    def plans(parts: object, given: JobInputs, say: object, clock: Clock) -> None:
        clocks.append(clock)
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "_plans", plans)
    save(JOB, tmp_path / "job.json")
    said: list[str] = []
    clock = Clock(100.0, 0.0, lambda: 30.0, limit_s=100.0)
    with pytest.raises(KeyboardInterrupt):
        pipeline.plan_job(tmp_path / "job.json", tmp_path / "out", said.append, clock, measure=True)
    assert (clocks[0].left_s, clocks[0].elapsed_s, clocks[0].whole_s) == (85.0, 15.0, 100.0)
    assert "  the time limit is for the plans, not for what is measured before them" in said


def test_the_limit_of_a_job_is_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from treadle.cli.main import run

    clocks: list[Clock | None] = []

    def plan(path: Path, out: Path, say: object, clock: Clock | None, **_: bool) -> None:
        clocks.append(clock)
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "plan_job", plan)
    assert run(["plan", "job", "job.yaml", "-o", str(tmp_path / "out"), "--time-limit", "7"], began=5.0) == 130
    assert run(["plan", "job", "job.yaml", "-o", str(tmp_path / "out")]) == 130
    assert clocks[0] is not None
    assert (clocks[0].began, clocks[0].ends, clocks[0].limit_s, clocks[1]) == (5.0, 12.0, 7.0, None)
