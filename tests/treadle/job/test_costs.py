"""Costs of a job's step are measured once for each step, number of processes and machine, and scaled to the step."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.planner.passes.memory.extract.test_problem import perceptron
from treadle.job import costs
from treadle.job.costs import StepCosts, scaled, timed, with_step_costs
from treadle.job.kept import CostCache
from treadle.job.part import MeasuredRank, MeasuredTraining, StepClock, StepTimes
from treadle.job.train import TrainingTask
from treadle.planner.graph.unrolling import OWN

TASK = TrainingTask("model:step", ".", (), 1, 0.1, 0)
TIMES = StepTimes(0.3, 0.002, 0.001)
CLOCK = StepClock(10.0, 10.3, 10.302, 10.303)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """The number of processes of each measurement that was made; the cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made: list[int] = []

    def measured(trace: object, parts: object, task: object, world: int) -> StepCosts:
        made.append(world)
        return StepCosts({op.id: {OWN: 7 + place} for place, op in enumerate(perceptron().ops)}, TIMES)

    monkeypatch.setattr(costs, "_measured", measured)
    return made


def measure(world: int = 2, *, fresh: bool = False, task: TrainingTask = TASK) -> list[str]:
    """The lines that were said."""
    said: list[str] = []
    cache = CostCache(fresh=fresh)
    trace, times = with_step_costs(perceptron(), (), task, world, said.append, cache)
    assert cache.reused is not bool(said)
    assert times == TIMES
    assert [op.time_ns for op in trace.ops] == [7 + place for place in range(len(trace.ops))]
    assert trace.costs.model == "measured"
    assert f"{world} processes of 1 thread" in str(trace.costs.device)
    return said


def test_a_step_is_measured_once(runs: list[int]) -> None:
    assert measure() == ["measure the step on 2 processes, once for this machine"]
    assert measure() == []
    assert runs == [2]


def test_another_number_of_processes_is_another_step(runs: list[int]) -> None:
    measure(2)
    measure(3)
    assert runs == [2, 3]


def test_fresh_costs_replace_what_was_kept(runs: list[int]) -> None:
    measure()
    measure(fresh=True)
    measure()
    assert runs == [2, 2]


@pytest.mark.parametrize(("pattern", "text"), [(".+", "{"), (r":7\b", ":-7")])
def test_a_damaged_file_is_replaced(
    pattern: str, text: str, runs: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    measure()
    (kept,) = (tmp_path / "treadle" / "jobs").glob("*.json")
    damaged = re.sub(pattern, text, kept.read_text())
    assert damaged != kept.read_text()
    kept.write_text(damaged)
    measure()
    assert "are not used" in caplog.text
    measure()
    assert runs == [2, 2]


def test_calls_keep_their_ratio_when_they_are_scaled_to_the_step() -> None:
    assert scaled({"a": {OWN: 100, "fft": 50}, "b": {OWN: 7}}, 2.5) == {"a": {OWN: 250, "fft": 125}, "b": {OWN: 18}}


def test_implementations_without_a_time_are_left_out() -> None:
    trace = perceptron()
    calls = {op.id: {OWN: 5} for op in trace.ops}
    assert all(not op.implementations for op in timed(trace, calls, "a CPU").ops)


@pytest.mark.parametrize(
    ("cpu", "cores", "seconds"),
    [((0.2, 0.3), 2, 0.3), ((0.2, 0.3), 1, 0.5), ((0.2, 0.2, 0.2), 2, 0.3), ((0.2,), 8, 0.2)],
)
def test_processes_share_the_cores(cpu: tuple[float, ...], cores: int, seconds: float) -> None:
    """The slowest process, or all of them divided by the cores."""
    measured = MeasuredTraining(tuple(MeasuredRank((CLOCK,), each) for each in cpu))
    assert measured.undisturbed_s(cores) == pytest.approx(seconds)


def test_a_part_of_a_step_ends_when_the_last_rank_has_ended_it() -> None:
    slow_pass, slow_exchange = StepClock(0.0, 4.0, 5.0, 9.0), StepClock(1.0, 3.0, 8.0, 8.5)
    step = MeasuredTraining((MeasuredRank((slow_pass,), 0.0), MeasuredRank((slow_exchange,), 0.0))).step
    assert step == StepTimes(3.0, 4.0, 1.0)
