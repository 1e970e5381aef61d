"""Programs timed in turns: who may be measured here, what ranks find together, and a real run on processes."""

from __future__ import annotations

import json
import signal
from functools import partial

import psutil
import pytest
from msgspec.structs import replace

from tests.codegen.collective.algorithms import ring_allreduce
from tests.codegen.collective.test_simulate_cpu import COSTS
from tests.planner.passes.collective.build import ring
from tests.planner.plans import collective_plan
from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.documents.pattern import Pattern
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.transports import Transports
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.sketching import propose
from treadle.planner.search.clock import Clock
from treadle.probe.resolve import load_hardware
from treadle.runtime import trial_ranks
from treadle.runtime.collective.turns import (
    WRONG,
    _Turn,
    collective_measuring,
    elements_of,
    outcome_of,
    ready,
    times_of,
)
from treadle.runtime.trial_ranks import launched

HERE = replace(load_hardware("cpu-2x2", 1), transports=Transports(cpu=replace(COSTS, hosts="one")))


def test_a_program_takes_what_its_slowest_rank_takes_in_the_middle_round():
    ranks = [_Turn([1e3, 5e3, 3e3], 0.0, 0.1), _Turn([2e3, 4e3, 1e3], 0.05, 0.1)]
    assert outcome_of(ranks) == (3000, "")
    assert outcome_of([ranks[0], ranks[1]._replace(error=0.2)]) == (3000, WRONG)
    assert outcome_of([_Turn([1e-3], 0.0, 0.0)]).ns == 1


@pytest.mark.parametrize(
    ("profile", "found"),
    [
        (load_hardware("ndv4"), "found GPUs in the profile ndv4, expected CPUs, which measure here"),
        (load_hardware("cpu-2x2"), "found the profile cpu-2x2 without transports.cpu"),
        (
            replace(load_hardware("cpu-2x2"), transports=Transports(cpu=COSTS)),
            "found 2 hosts in cpu-2x2, expected one: all processes run on this machine",
        ),
    ],
)
def test_a_profile_that_prices_another_runtime_is_refused(profile, found):
    with pytest.raises(InputError, match=found):
        collective_measuring(3, profile, Clock())


def test_a_program_that_is_wrong_is_not_ready():
    decisions = ring_allreduce(2)
    assert ready(decisions) == ""
    assert ready(replace(decisions, transfers=decisions.transfers[:-1])) != ""


@pytest.mark.parametrize(
    ("collective", "elements"), [("allreduce", 1024), ("allgather", 1024), ("reducescatter", 256), ("alltoall", 256)]
)
def test_calls_have_the_planned_size(collective, elements):
    sketch = propose(ring(4), collective=collective, size_bytes=4096)
    plan = collective_plan(collective, ring(4), sketch, size_bytes=4096, method="greedy")
    assert elements_of(plan.decisions) == elements


def test_a_part_of_a_pattern_has_its_own_size():
    pattern = Pattern(version=1, name="pair", counts=((0, 3), (0, 0)), unit="512")
    profile = load_hardware("cpu-2x2", 1)
    plan = collective_plan(
        "alltoallv", profile, propose(profile, collective="alltoallv", size_bytes=1536), pattern=pattern
    )
    assert elements_of(plan.decisions) == 128


def test_more_than_this_machine_holds_is_refused(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 2**20})())
    with pytest.raises(
        InputError, match=r"found 1 MiB free, expected about 512.* MiB to measure; --top measures fewer at once"
    ):
        times_of([ring_allreduce(2)], Clock(), lambda *_: pytest.fail("nothing may start"))
    with pytest.raises(InputError, match="found 1 MiB free, expected about 512 MiB to measure"):
        collective_measuring(3, HERE, Clock())


def test_what_every_rank_found_is_put_together_by_program():
    asked = []

    def ask(worker, arguments):
        asked.append(arguments[0].elements)
        return [[_Turn([1e3], 0.0, 0.0), _Turn([3e3], 0.0, 0.0)], [_Turn([2e3], 0.0, 0.0), _Turn([1e3], 0.0, 0.0)]]

    decisions = ring_allreduce(2)
    assert times_of([decisions] * 3, Clock(), ask) == {0: (2000, ""), 1: (3000, "")}
    assert asked == [elements_of(decisions)]


def test_bad_combinations_are_one_line(here, capsys):
    for arguments, message in (
        (["--measure", "--sizes", "1K,1M"], "--measure times one size, expected it without --sizes"),
        (["--top", "3"], "--top belongs to --measure"),
        (["--measure"], "found GPUs in the profile ring4"),
    ):
        command = ["plan", "collective", "allgather", "--hardware", "ring4", "--size", "1KiB", *arguments]
        assert run([*command, "-o", "plan.json"]) == 2
        assert message in capsys.readouterr().err
        assert not (here / "plan.json").exists()


def test_ctrl_c_while_programs_are_measured_keeps_the_best_predicted(here, capsys, monkeypatch):
    store.save(HERE, here / "here.json")
    monkeypatch.setattr(trial_ranks, "launch", lambda *_: signal.raise_signal(signal.SIGINT))
    command = ["plan", "collective", "allreduce", "--hardware", "here.json", "--size", "64KiB", "--measure"]
    assert run([*command, "-o", "plan.json"]) == 0
    assert capsys.readouterr().err.splitlines()[-2:] == [
        "interrupted: this is the best plan found so far",
        "nothing was measured: this is the best by predicted time",
    ]
    assert store.load(here / "plan.json", Plan).provenance.interrupted
    assert run(["check", "--fresh", "plan.json"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("collective", ["allreduce", "alltoall"])
def test_programs_are_run_and_the_fastest_is_planned(here, capsys, collective):
    store.save(HERE, here / "here.json")
    command = ["plan", "collective", collective, "--hardware", "here.json", "--size", "64KiB", "--measure"]
    assert run([*command, "--top", "2", "-o", "plan.json", "--json"]) == 0
    plan = store.load(here / "plan.json", Plan)
    (tuned,) = plan.provenance.tuned
    assert len(tuned.measured) == min(2, len(tuned.ranked))
    assert all(each.measured_ns and each.excluded is None for each in tuned.measured)
    assert json.loads(capsys.readouterr().out)["tuned"][0]["chosen"] == tuned.chosen
    assert run(["check", "--fresh", "plan.json"]) == 0


@pytest.mark.slow
def test_a_time_that_is_over_leaves_one_program_and_one_round(monkeypatch):
    monkeypatch.setattr(trial_ranks, "SHARE", -1.0)
    decisions = ring_allreduce(2)
    found = times_of([decisions, replace(decisions, instances=2)], Clock.of(1000.0), partial(launched, 2))
    assert list(found) == [0]
    assert found[0].excluded == ""
