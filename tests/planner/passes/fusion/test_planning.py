"""`plan_fusion`: the best schedule as a checked plan, reported as every pass reports its plans."""

from __future__ import annotations

import os
import signal

from tests.planner.machine.machines import profile
from tests.planner.passes.fusion.by_hand import adam, sgd
from treadle.planner.documents.plan import InputRef
from treadle.planner.passes.fusion import ranking
from treadle.planner.passes.fusion.check import check
from treadle.planner.passes.fusion.enumerate import enumerate_schedules
from treadle.planner.passes.fusion.planning import plan_fusion
from treadle.planner.passes.fusion.program import Bindings
from treadle.planner.passes.fusion.ranking import FusionProblem


def test_the_plan_is_the_fastest_schedule_priced_and_names_its_inputs():
    times, plans = [], []
    inputs = {"hardware": InputRef(file="dgx2", digest="sha256:" + "0" * 64)}
    plan = plan_fusion(
        FusionProblem(sgd("ar"), Bindings({"N": 1 << 20}, 8), profile("dgx2")),
        inputs=inputs,
        on_progress=lambda progress: times.append(progress.incumbent),
        on_plan=plans.append,
    )
    assert times == sorted(times, reverse=True)
    assert times[-1] == plan.decisions.time_ns
    assert plans == [plan]
    assert plan.inputs == inputs


def test_ctrl_c_while_schedules_are_looked_for_leaves_the_best_so_far(monkeypatch):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def press(*given, **others):
        os.kill(os.getpid(), signal.SIGINT)
        return enumerate_schedules(*given, **others)

    monkeypatch.setattr(ranking, "enumerate_schedules", press)
    try:
        plan = plan_fusion(FusionProblem(adam("ar"), Bindings({"N": 65536}, 8), profile("dgx2")))
    finally:
        signal.signal(signal.SIGINT, before)
    assert plan.provenance.interrupted
    assert plan.decisions.considered == 1
    assert check(plan.decisions) == []
