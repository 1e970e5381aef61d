"""Swap plans timed in turns: what is refused, how the emulation is paced, and a real run."""

from __future__ import annotations

import json

import msgspec
import psutil
import pytest
import torch

from tests.planner.passes.swap import cases
from tests.treadle.runtime.swap.steps import plan_of, trace_of
from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InputError
from treadle.planner.search.clock import Clock
from treadle.runtime.swap import turns
from treadle.runtime.swap.turns import WRONG, swap_measuring, times_of

ENTRY = "tests.treadle.runtime.swap.steps:tiny"


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(turns, "EMULATED", 0.02)


def tiny():
    return msgspec.structs.replace(trace_of("tiny", "adam"), entry=ENTRY)


def plans():
    return [plan_of("tiny", "adam"), plan_of("tiny", "adam", shuffled=True), plan_of("tiny", "adam", extra=3)]


def test_every_plan_gets_a_time_of_the_planned_machine(quick):
    found = times_of(plans(), trace=tiny(), entry=ENTRY, clock=Clock())
    assert list(found) == [0, 1, 2]
    for plan, outcome in zip(plans(), found.values(), strict=True):
        assert outcome.excluded == ""
        assert outcome.ns is not None
        assert outcome.ns >= plan.decisions.problem.ideal_ns, "operators take at least their time"


def test_no_other_plan_is_begun_once_the_time_is_over(quick):
    assert list(times_of(plans(), trace=tiny(), entry=ENTRY, clock=Clock.of(-1.0))) == [0]


def test_a_plan_whose_values_differ_may_not_be_taken(quick, monkeypatch):
    monkeypatch.setattr(turns, "unconstrained", lambda *_: [torch.zeros(())])
    (outcome,) = times_of(plans()[:1], trace=tiny(), entry=ENTRY, clock=Clock()).values()
    assert outcome.excluded == WRONG


def test_a_trace_that_names_no_model_is_refused():
    with pytest.raises(InputError, match="found a trace without MODULE:FUNCTION of its model, which is run"):
        swap_measuring(3, msgspec.structs.replace(tiny(), entry=None), Clock())
    with pytest.raises(InputError, match="no_such_module"):
        swap_measuring(3, msgspec.structs.replace(tiny(), entry="no_such_module:step"), Clock())


def test_a_plan_without_addresses_is_not_ready():
    decisions = msgspec.structs.replace(plans()[0].decisions, allocator="bytes")
    why = swap_measuring(3, tiny(), Clock()).ready(msgspec.structs.replace(plans()[0], decisions=decisions))
    assert "found a plan without addresses" in why


def test_more_than_this_machine_holds_is_refused(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 10})())
    with pytest.raises(
        InputError, match=r"found 10 B free, expected about .* to measure; --top measures fewer at once"
    ):
        times_of(plans()[:2], trace=tiny(), entry=ENTRY, clock=Clock())
    with pytest.raises(InputError, match=r"found 10 B free, expected about .* to measure"):
        swap_measuring(3, tiny(), Clock())


def test_bad_combinations_are_one_line(here, capsys):
    store.save(cases.figure_4_1(), here / "problem.json")
    store.save(tiny(), here / "step.json")
    traced = ["--trace", "step.json", "--hardware", "p3-v100-16gb"]
    for arguments, message in (
        (["--problem", "problem.json", "--measure"], "--measure needs --trace: it runs the model"),
        ([*traced, "--top", "2"], "--top belongs to --measure"),
        ([*traced, "--measure", "--with-recompute"], "expected it without --with-recompute"),
        ([*traced, "--measure", "--as-published"], "expected it without --as-published"),
        ([*traced, "--measure", "--allocator", "bytes"], "expected it without --allocator bytes"),
    ):
        assert run(["plan", "swap", *arguments, "-o", "plan.json"]) == 2
        assert message in capsys.readouterr().err
        assert not (here / "plan.json").exists()


@pytest.mark.slow
def test_plans_are_run_and_the_fastest_is_taken(here, capsys, quick):
    store.save(tiny(), here / "step.json")
    command = ["plan", "swap", "--trace", "step.json", "--hardware", "p3-v100-16gb", "--device-memory", "0.7x"]
    effort = ["--generations", "3", "--population", "8", "--workers", "1"]
    assert run([*command, *effort, "--measure", "--top", "3", "-o", "plan.json", "--json"]) == 0
    plan = store.load(here / "plan.json", Plan)
    (tuned,) = plan.provenance.tuned
    assert len(tuned.measured) == min(3, len(tuned.ranked))
    assert all(each.excluded is None for each in tuned.measured)
    assert json.loads(capsys.readouterr().out)["tuned"][0]["chosen"] == tuned.chosen
    assert run(["check", "--fresh", "plan.json"]) == 0
