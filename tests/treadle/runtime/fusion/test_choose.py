"""What `treadle plan fusion --measure` tries, with times that are made up."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.planner.passes.fusion.by_hand import sgd
from treadle.codegen.fusion.lower import Lowered
from treadle.planner.errors import InputError, LimitError
from treadle.planner.passes import pass_of
from treadle.planner.passes.fusion.check import check
from treadle.planner.passes.fusion.notation import notation
from treadle.planner.passes.fusion.planning import plan_of
from treadle.planner.passes.fusion.program import Bindings, Program
from treadle.planner.passes.fusion.ranking import FusionProblem, rank_schedules
from treadle.planner.search.clock import Clock
from treadle.probe.resolve import load_hardware
from treadle.runtime.fusion import choose
from treadle.runtime.fusion.build import Compiled

FASTEST = "all-pairs, LL, 4 channels"


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what is run; `fuse(RS-C-AG)` on FASTEST is the fastest."""
    names: list[str] = []

    def build(lowered: Lowered, target: str) -> Compiled:
        return Compiled(Path("nowhere"), "process", 4, lowered.buffers)

    def seconds(candidates: Sequence[Any], repeats: int) -> list[Sequence[float]]:
        names.extend(f"{each.ranked.name} | {each.name}" for each in candidates)
        return [
            [each.ranked.time_ns * (1e-12 if (each.ranked.name, each.name) == ("fuse(RS-C-AG)", FASTEST) else 1e-9)]
            * repeats
            for each in candidates
        ]

    monkeypatch.setattr(choose, "build", build)
    monkeypatch.setattr(choose, "_seconds", seconds)
    return names


def test_the_plan_is_what_was_fastest(tried: list[str]) -> None:
    found = rank_schedules(FusionProblem(sgd("ar"), Bindings({"N": 1 << 20}, 4), load_hardware("switch4", None)))
    found, tuned = choose.measured(found, 6)
    plan = plan_of(found, {}, tuned)
    decisions = plan.decisions
    assert check(decisions) == []
    (stage,) = decisions.stages
    assert f"{stage.algorithm}, {stage.protocol}, {stage.channels} channels" == FASTEST
    assert plan.certificate.objective == decisions.time_ns, "about the predicted time"
    times = decisions.measured_ns
    assert min(times.values()) == times["fuse(RS-C-AG)"]
    assert {each.what: each.chosen for each in plan.provenance.tuned} == {
        "schedule": "fuse(RS-C-AG)",
        "algorithm and protocol": FASTEST,
        "channels": FASTEST,
    }
    assert [len(each.measured) for each in plan.provenance.tuned] == [min(6, len(each.ranked)) for each in tuned]


def test_every_algorithm_and_protocol_is_tried(tried: list[str]) -> None:
    found = rank_schedules(FusionProblem(sgd("ar"), Bindings({"N": 1 << 12}, 4), load_hardware("cpu-2x2", None)))
    choose.measured(found, 6)
    on = [name.split(" | ")[1].split(", ") for name in tried if name.startswith("fuse(RS-C-AG) | ") and "," in name]
    assert {protocol for _, protocol, _ in on} == {"Simple", "LL", "LL128"}
    assert {algorithm for algorithm, _, _ in on} == {"ring", "hierarchical"}, "all pairs belong to one node"
    assert len({channels for _, _, channels in on}) > 1


def test_the_turn_of_what_does_not_compile_goes_to_the_next(tried: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = rank_schedules(FusionProblem(sgd("ar"), Bindings({"N": 1 << 20}, 4), load_hardware("switch4", None)))
    first = found.ranked[0].name
    compiled = choose.lowered_as

    def refuse(program: Program, *rest: Any) -> Lowered:
        if notation(program) == first:
            raise InputError("no kernel for it")
        return compiled(program, *rest)

    monkeypatch.setattr(choose, "lowered_as", refuse)
    again, tuned = choose.measured(found, 2)
    assert [each.excluded for each in tuned[0].ranked[:4]] == ["no kernel for it", None, None, None]
    assert len(tuned[0].measured) == 2
    assert again.chosen.name == tuned[0].chosen != first
    assert plan_of(again, {}, tuned).provenance.tuned == tuned


def test_schedules_are_lowered_in_one_thread(tried: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads that read plans of a kind for the first time have ended the process with signal 11, in msgspec."""
    threads: set[threading.Thread] = set()
    compiled = choose.lowered_as

    def lowered(*given: Any) -> Lowered:
        threads.add(threading.current_thread())
        return compiled(*given)

    monkeypatch.setattr(choose, "lowered_as", lowered)
    choose.measured(
        rank_schedules(FusionProblem(sgd("ar"), Bindings({"N": 1 << 20}, 4), load_hardware("switch4", None))), 4
    )
    assert threads == {threading.current_thread()}


def test_of_one_only_its_collectives_are_searched(tried: list[str]) -> None:
    found = rank_schedules(FusionProblem(sgd("ar"), Bindings({"N": 1 << 20}, 4), load_hardware("switch4", None)))
    found, tuned = choose.measured(found, 1)
    assert [len(each.measured) for each in tuned] == [1] * len(tuned)
    assert tuned[0].place == 1


def test_an_expired_clock_leaves_one_schedule_and_is_recorded(tried: list[str]) -> None:
    clock = Clock(ends=5.0, began=0.0, now=lambda: 10.0)
    found = rank_schedules(FusionProblem(sgd("ar"), Bindings({"N": 1 << 20}, 4), load_hardware("switch4", None)))
    found, tuned = choose.measured(found, 6, clock=clock)
    plan = plan_of(found, {}, tuned)
    assert plan.provenance.limit_fired
    assert 1 <= len(tuned[0].measured) <= max(1, os.cpu_count() or 1)
    assert len(tuned) == 1


def test_a_record_of_other_times_than_the_plan_has_is_found(tried: list[str]) -> None:
    found = rank_schedules(FusionProblem(sgd("ar"), Bindings({"N": 1 << 20}, 4), load_hardware("switch4", None)))
    found, tuned = choose.measured(found, 3)
    plan = plan_of(found, {}, tuned)
    assert list(pass_of(plan).check_certificate(plan)) == []
    other = msgspec.structs.replace(plan.decisions, measured_ns={plan.provenance.tuned[0].chosen: 1})
    (finding,) = pass_of(plan).check_certificate(msgspec.structs.replace(plan, decisions=other))
    assert finding == "provenance: schedules with other times than those that the plan measured"
    without = msgspec.structs.replace(plan, provenance=msgspec.structs.replace(plan.provenance, tuned=()))
    assert list(pass_of(plan).check_certificate(without)) == [finding]


def test_an_interrupt_keeps_what_was_compiled_by_then(tried: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    found = rank_schedules(
        FusionProblem(sgd("ar"), Bindings({"N": 1 << 20}, 4), load_hardware("switch4", None)), clock=clock
    )
    built = choose.build

    def interrupted(lowered: Lowered, target: str) -> Compiled:
        if clock.stop.is_set():
            raise LimitError("g++ was killed by signal 2")
        clock.stop.set()
        return built(lowered, "process")

    monkeypatch.setattr(choose, "build", interrupted)
    monkeypatch.setattr(choose.os, "cpu_count", lambda: 1)
    found, tuned = choose.measured(found, 3, clock=clock)
    plan = plan_of(found, {}, tuned)
    assert (plan.provenance.interrupted, plan.provenance.limit_fired) == (True, False)
    assert [len(each.measured) for each in tuned] == [1]
    assert all(each.excluded is None for each in tuned[0].ranked)
    assert choose.measured(found, 3, clock=clock) == (found, ()), "interrupted before any schedule was measured"
