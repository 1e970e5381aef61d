"""Programs of a collective ranked by their price, and the fastest measured taken, with times that are made up."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.codegen.collective.test_simulate_cpu import COSTS
from tests.planner.plans import collective_plan
from treadle.check.plan import check_plan
from treadle.passes.collective.room import ROOM
from treadle.passes.collective.tuning import pricing
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.transports import Transports
from treadle.planner.errors import InputError
from treadle.planner.passes import pass_of
from treadle.planner.passes.collective.pricing import Price
from treadle.planner.passes.collective.sketching import propose
from treadle.planner.search.in_turns import Measuring
from treadle.planner.search.top import Outcome
from treadle.probe.resolve import load_hardware

SIZE = 2**16
HERE = replace(load_hardware("cpu-2x2"), transports=Transports(cpu=replace(COSTS, hosts="one")))
SKETCH = propose(HERE, collective="allreduce", size_bytes=SIZE)


class Made:
    """Measurements in which what is predicted worst is the fastest."""

    def __init__(self, top: int, most: int | None = None) -> None:
        self.seen, self.most = [], most
        self.measuring = Measuring(top, self.run, machine="cpu-2x2")

    def run(self, rows):
        [self.seen] = rows
        return [{at: Outcome(1000 - at) for at in range(len(self.seen))[: self.most]}]


def planned(measuring, method="auto", price=None) -> Plan:
    options = {"pricing": price or pricing(HERE, None, None), "measuring": measuring}
    return collective_plan("allreduce", HERE, SKETCH, size_bytes=SIZE, method=method, **options)


def test_the_fastest_measured_of_the_best_predicted_is_taken():
    made = Made(3)
    plan = planned(made.measuring)
    (tuned,) = plan.provenance.tuned
    assert (tuned.what, tuned.model, tuned.top) == ("program", "simulator of programs on cpu-2x2", 3)
    assert len(made.seen) == len(tuned.measured) == 3
    assert [each.predicted_ns for each in tuned.ranked] == sorted(each.predicted_ns for each in tuned.ranked)
    third = tuned.ranked[2]
    assert tuned.chosen == third.name
    assert plan.prediction.time_us == pytest.approx(third.predicted_ns / 1000)
    assert replace(plan.decisions, ordered=False) == made.seen[2]
    method, _, label = third.name.rpartition(", ")
    known = plan.provenance.known
    assert known.chosen == method
    assert known.transport.chosen == label == f"{plan.decisions.protocol} x {plan.decisions.instances}"
    assert known.candidates_us[method] == known.transport.program_us == plan.prediction.time_us
    assert not plan.provenance.limit_fired


def test_the_plan_passes_its_check_and_its_prediction_is_that_of_its_program():
    plan = planned(Made(4).measuring)
    assert check_plan(plan) == []
    assert pass_of(plan).check(plan.decisions) == []
    assert ROOM.check_prediction(plan, {"hardware": HERE}) == []
    assert store.loads(store.dumps(plan), "plan", Plan) == plan


def test_equal_programs_count_once():
    made = Made(100)
    (tuned,) = planned(made.measuring).provenance.tuned
    programs = [(one.transfers, one.chunk_bytes, one.protocol, one.instances) for one in made.seen]
    assert len(set(programs)) == len(programs) == len(tuned.ranked)


def test_one_method_has_its_instances_compared():
    (tuned,) = planned(Made(5).measuring, method="halving-doubling").provenance.tuned
    assert {each.name for each in tuned.ranked} == {"halving-doubling, Simple x 1", "halving-doubling, Simple x 2"}


def test_nothing_changes_without_a_measurement():
    plan = planned(None)
    assert plan.provenance.tuned == ()
    assert plan == planned(None)


def test_a_measurement_that_the_limit_cut_is_recorded_as_that():
    plan = planned(Made(3, most=1).measuring)
    assert plan.provenance.limit_fired
    assert len(plan.provenance.tuned[0].measured) == 1


@pytest.mark.parametrize("method", ["auto", "halving-doubling"])
def test_ctrl_c_while_programs_are_measured_leaves_the_best_predicted(method):
    def interrupted(rows):
        raise KeyboardInterrupt

    plan = planned(Measuring(3, interrupted), method)
    assert (plan.provenance.interrupted, plan.provenance.limit_fired) == (True, False)
    assert plan.provenance.tuned == ()
    assert plan.decisions == planned(None, method).decisions
    assert check_plan(plan) == []


def test_plans_whose_programs_nothing_simulated_are_refused():
    class Unsimulated:
        def __call__(self, decisions, over=None, like=None):
            return Price(1.0, decisions.protocol, 1, False, True, {"by_size": "too many transfers"})

    with pytest.raises(InputError, match="found no program that was simulated: too many transfers"):
        planned(Made(3).measuring, price=Unsimulated())
