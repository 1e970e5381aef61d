"""Plans of compression of which the best predicted are measured."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from msgspec.structs import replace

from tests.codegen.compression.compression_plans import small_problem
from treadle.check.plan import check_plan
from treadle.planner.documents import store
from treadle.planner.documents.compression_costs import Curve
from treadle.planner.passes.compression.decisions import CompressionDecisions
from treadle.planner.passes.compression.planning import CompressionOptions, plan_compression
from treadle.planner.search.clock import Clock
from treadle.planner.search.in_turns import Measuring
from treadle.planner.search.top import Outcome
from treadle.runtime.compression.trials import ready

Rows = Sequence[Sequence[CompressionDecisions]]


Found = list[dict[int, Outcome]]


def uncompressed_is_fast(rows: Rows) -> Found:
    """Every encoding takes a second."""
    return [
        {
            at: Outcome(1e6 + 1e9 * sum(group.compressor is not None for group in plan.groups))
            for at, plan in enumerate(row)
        }
        for row in rows
    ]


def never(rows: Rows) -> Found:
    raise AssertionError("nothing is to be measured")


def test_the_fastest_measured_plan_is_taken_and_recorded() -> None:
    problem = small_problem()
    plan = plan_compression(problem, options=CompressionOptions(measuring=Measuring(20, uncompressed_is_fast)))
    [tuned] = plan.provenance.tuned
    assert tuned.chosen == plan.provenance.method
    assert all(group.compressor is None for group in plan.decisions.groups)
    assert {each.name: each.predicted_ns for each in tuned.ranked}[tuned.chosen] == plan.decisions.time_ns
    assert len(tuned.measured) == len(tuned.ranked) <= 20
    assert check_plan(plan) == []


def test_as_many_as_asked_for_are_measured_once_each() -> None:
    asked: list[list[CompressionDecisions]] = []

    def run(rows: Rows) -> Found:
        asked.extend(list(row) for row in rows)
        return uncompressed_is_fast(rows)

    unmeasured = plan_compression(small_problem())
    plan = plan_compression(small_problem(), options=CompressionOptions(measuring=Measuring(3, run)))
    [row] = asked
    assert len(row) == len({each.groups for each in row}) == 3
    assert row[0].groups == unmeasured.decisions.groups
    assert [each.time_ns for each in row] == sorted(each.time_ns for each in row)
    assert check_plan(plan) == []


def test_without_measuring_nothing_of_a_plan_changes() -> None:
    text = store.dumps(plan_compression(small_problem()))
    assert "tuned" not in text
    assert text == store.dumps(plan_compression(small_problem(), options=CompressionOptions(measuring=None)))


def test_compressors_and_allreduces_that_do_not_run_here_are_left_to_the_next() -> None:
    problem = small_problem()
    own = replace(problem.compressors[0], name="ours", wire=Curve(points=((0, 0), (1000, 40))))
    plan = plan_compression(
        replace(problem, compressors=(own,), planned=Curve(points=((1, 1000),))),
        options=CompressionOptions(measuring=Measuring(1, uncompressed_is_fast, ready)),
    )
    [tuned] = plan.provenance.tuned
    *tried, measured = tuned.ranked[: tuned.place]
    known = {"treadle does not have ours", "its planned allreduce is not among what is measured"}
    assert tried
    assert {each.excluded for each in tried} <= known
    assert measured.measured_ns
    assert all(group.compressor is None for group in plan.decisions.groups)
    assert check_plan(plan) == []


def test_ctrl_c_leaves_the_plan_that_was_found() -> None:
    def interrupted(rows: Rows) -> Found:
        raise KeyboardInterrupt

    plan = plan_compression(small_problem(), options=CompressionOptions(measuring=Measuring(3, interrupted)))
    assert plan.provenance.interrupted
    assert plan.provenance.tuned == ()
    assert plan.decisions == plan_compression(small_problem()).decisions


def test_after_ctrl_c_nothing_is_measured() -> None:
    clock = Clock(stop=threading.Event())
    clock.stop.set()
    plan = plan_compression(small_problem(), clock=clock, options=CompressionOptions(measuring=Measuring(3, never)))
    assert plan.provenance.interrupted
