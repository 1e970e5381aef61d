"""The live line of a job: the plan at work and how far its search is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tests.planner import samples
from tests.planner.passes.memory.extract.test_problem import perceptron
from treadle.job import pipeline
from treadle.job.part import JobInputs, JobPart, JobPlan
from treadle.planner.search.clock import Clock
from treadle.planner.solver import Progress


class TwoPlans(JobPart):
    def plans(self, given: JobInputs) -> Sequence[JobPlan]:
        def plan(clock: Clock | None, on_progress: Callable[[Progress], None]) -> Any:
            on_progress(Progress(2e6, 1e6, 0.5, 3.0, "heuristic"))
            return SimpleNamespace(provenance=SimpleNamespace(limit_fired=False, interrupted=False, tuned=()))

        return [JobPlan("memory", "memory under 0.7x", plan), JobPlan("allreduce-0", "allreduce-0 of 4 MiB", plan)]


def test_the_line_names_the_plan_at_work_with_best_bound_gap_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    @contextmanager
    def line() -> Iterator[Callable[[str], None]]:
        yield shown.append

    monkeypatch.setattr(pipeline, "live_line", line)
    monkeypatch.setattr(pipeline, "_quality", lambda plan: "fine")
    inputs = JobInputs(perceptron(), samples.HARDWARE, {}, None)
    pipeline._plans([TwoPlans()], inputs, lambda text: None, Clock(began=0.0, now=lambda: 12.0))
    figures = "heuristic: best 2 ms   bound 1 ms   gap 50.00%   12 s"
    assert shown == [
        "memory",
        f"memory: {figures}",
        "allreduce-0",
        f"allreduce-0: {figures}",
    ]
