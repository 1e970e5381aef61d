"""The report's section of a swap plan: figures agree with the simulation, and thousands of copies make a picture."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from lxml import etree
from msgspec.structs import replace

from tests.planner.passes.swap import cases
from tests.planner.passes.swap.plans import decide, evaluate, random_order, random_pool
from treadle.cli.main import run
from treadle.passes.swap.copies import copies_of, trips_of, waits_of
from treadle.passes.swap.figure import WAITING, streams_svg
from treadle.passes.swap.section import THIN, busiest, swap_section
from treadle.planner.documents import store
from treadle.planner.documents.plan import Certificate, Generation, Plan, Prediction, Provenance
from treadle.planner.documents.trace import OpRun
from treadle.planner.passes.swap.arrays import arrays_of
from treadle.planner.passes.swap.decisions import SwapDecisions
from treadle.planner.passes.swap.layout import Pool
from treadle.planner.passes.swap.timeline_of import start_bytes, tasks_of
from treadle.planner.timeline.simulator import Schedule, simulate
from treadle.report.page import Page, render


def plan_of(decisions: SwapDecisions, log: tuple[Generation, ...] = ()) -> Plan:
    time = decisions.time_ns
    return Plan(
        version=1,
        decisions=decisions,
        prediction=Prediction(time_us=time / 1e3),
        certificate=Certificate(
            verdict="accepted",
            checker="treadle.planner.passes.swap.check",
            objective=time,
            lower_bound=1,
            unit="ns",
            argument="none",
            gap=0.5,
            optimal=False,
        ),
        provenance=Provenance(tool="treadle", method="genetic", search_log=log),
    )


def schedule_of(decisions: SwapDecisions) -> Schedule:
    return simulate(*tasks_of(decisions), start_bytes(decisions))


def left_fine() -> SwapDecisions:
    """O1: Concat waits for A2 to leave the only object of 2 bytes."""
    return decide(cases.figure_4_1(), cases.LEFT, Pool((1, 2), (8, 1)))


@cache
def random_plans() -> list[SwapDecisions]:
    found = []
    for seed in range(60):
        rng = random.Random(seed)
        problem = cases.random_problem(rng, ops=12)
        order, pool = random_order(rng, problem), random_pool(rng, problem, extra=1)
        if evaluate(arrays_of(problem), order, pool) is not None:
            found.append(decide(problem, order, pool))
    assert len(found) > 30
    return found


def test_every_copy_tells_how_much_of_it_is_hidden() -> None:
    """Against a look at every single nanosecond."""
    for decisions in random_plans():
        schedule = schedule_of(decisions)
        busy = {
            moment
            for node, begin, end in zip(decisions.nodes, schedule.start, schedule.end, strict=True)
            if node.kind == "compute"
            for moment in range(begin, end)
        }
        for copy in copies_of(decisions, schedule):
            assert copy.hidden_ns == sum(moment in busy for moment in range(copy.start, copy.end))


def test_waits_are_all_the_time_in_which_no_operator_runs() -> None:
    for decisions in random_plans():
        schedule = schedule_of(decisions)
        ran = [end for node, end in zip(decisions.nodes, schedule.end, strict=True) if node.kind == "compute"]
        waits = waits_of(decisions, schedule)
        assert sum(time for time, _, _ in waits) + schedule.makespan - max(ran) == decisions.idle_ns
        for _, place, before in waits:
            assert before is not None
            assert schedule.end[before] == schedule.start[place]


def test_trips_hold_every_copy_once() -> None:
    for decisions in random_plans():
        trips = trips_of(decisions, schedule_of(decisions))
        for kind, ends in (("out", [trip.out for trip in trips]), ("in", [trip.back for trip in trips])):
            assert sum(end is not None for end in ends) == sum(node.kind == kind for node in decisions.nodes)
        assert all(trip.out is None or trip.back is None or trip.out.end <= trip.back.start for trip in trips)


def test_the_section_tells_what_the_operators_wait_for() -> None:
    decisions = left_fine()
    section = swap_section("mine", plan_of(decisions))
    assert section.title == "Swap: mine"
    assert "An iteration takes 7 ns, at 85.7% of the speed without any copy (6 ns)" in section.text
    assert "Tensors take 10 B at most, of 10 B left for them of the device's 10 B." in section.text
    roles, trips, waits, pool = section.tables
    assert {row[0] for row in roles.rows} == {"activations"}
    assert trips.rows[0][:3] == ("A2", "activation", "2 B")
    assert [(row[0], row[2]) for row in waits.rows] == [("Concat", "out A2")]
    assert pool.rows == (("1", "1 B", "8", "8 B", "1 B"), ("2", "2 B", "1", "2 B", "2 B"))


def words(svg: str) -> set[str]:
    return {text.strip() for text in etree.fromstring(svg.encode()).itertext() if text.strip()}


def test_pictures_name_streams_roles_and_generations() -> None:
    decisions = left_fine()
    log = tuple(Generation(number=n, best_ns=9 - n, mean_ns=12 - n, worst_ns=14) for n in range(3))
    streams, search = swap_section("mine", plan_of(decisions, log)).pictures
    expected = {
        "compute",
        "in",
        "out",
        "parameters",
        "activations",
        "operators",
        WAITING,
        "memory for tensors",
        "Concat",
    }
    assert expected <= words(streams.svg)
    assert {"generation", "best so far", "mean", "worst", "without any copy"} <= words(search.svg)
    assert swap_section("mine", plan_of(decisions, log)).pictures[0].svg == streams.svg


def test_nothing_copied_is_said() -> None:
    decisions = decide(cases.built(4, [cases.activation("A")], [("make", "", "A")]), (0,), Pool((1,), (1,)))
    section = swap_section("mine", plan_of(decisions))
    assert "Nothing is copied." in section.text
    assert len(section.pictures) == 1
    assert len(section.tables) == 1


@pytest.mark.slow
def test_thousands_of_copies_make_small_pictures_with_the_true_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[int, int]] = []

    def draw(bars: Any, points: Any, **given: Any) -> str:
        drawn.append((len(bars), max(sum(level.values()) for _, level in points)))
        return streams_svg(bars, points, **given)

    monkeypatch.setattr("treadle.passes.swap.section.streams_svg", draw)
    problem = cases.rnn(4, 600, memory=24)
    decisions = decide(problem, cases.time_by_time(4, 600), Pool((1, 2), (8, 2)))
    copies = copies_of(decisions, schedule_of(decisions))
    assert len(copies) > 4 * THIN
    section = swap_section("long", plan_of(decisions))
    whole, close = section.pictures
    assert drawn[0][1] == decisions.peak_bytes
    assert drawn[0][0] <= 4 * THIN
    assert len(whole.svg) < 500_000
    begin, end = busiest(copies, decisions.time_ns) or (0, 0)
    assert end - begin == decisions.time_ns // 40
    assert {"compute", "in", "out"} <= words(close.svg)
    page = render(Page("t", "", (), (section,)))
    count = len(trips_of(decisions, schedule_of(decisions)))
    assert f"The largest of {count:,} moves out of the device and back (" in page


def test_an_svg_is_the_picture_of_one_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store.save(cases.figure_4_1(), "problem.json")
    for name in ("a", "b"):
        assert run(["plan", "swap", "--problem", "problem.json", "--generations", "1", "-o", f"{name}.json"]) == 0
    assert run(["report", "a.json", "-o", "a.svg"]) == 0
    assert {"compute", "in", "out", "memory for tensors"} <= words(Path("a.svg").read_text())
    assert run(["report", "a.json", "b.json", "-o", "both.svg"]) == 2
    assert not Path("both.svg").exists()
    assert run(["report", "a.json", "b.json", "-o", "both.html"]) == 0
    assert "Swap: b" in Path("both.html").read_text()


def test_runs_again_are_told() -> None:
    decisions = left_fine()
    runs = tuple(OpRun(op=op.id) for op in (*decisions.problem.ops, decisions.problem.ops[0]))
    again = replace(decisions, runs=runs)
    assert "1 operator call repeated instead of a copy." in swap_section("mine", plan_of(again)).text
    assert "repeated instead" not in swap_section("mine", plan_of(decisions)).text
