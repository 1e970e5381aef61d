"""The report on a checkpoint plan: an iteration with its pieces, who holds what, tables and cards."""

from __future__ import annotations

import re
from functools import cache

from msgspec.structs import replace

from tests.planner.passes.checkpoint.checkpoint_plans import COPYING, PROBLEM
from treadle.codegen.checkpoint.room import ROOM as TARGETS
from treadle.passes.checkpoint.cards import checkpoint_cards
from treadle.passes.checkpoint.figure import DRAWN_MACHINES, bars_of, holders_svg
from treadle.passes.checkpoint.room import ROOM
from treadle.passes.checkpoint.section import checkpoint_section
from treadle.passes.checkpoint.words import certain, chance, lines, remarks, waste_rows
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
from treadle.planner.passes.checkpoint.events import happens, tasks_of
from treadle.planner.passes.checkpoint.planning import CheckpointOptions, plan_checkpoint
from treadle.planner.passes.checkpoint.problem import CheckpointProblem
from treadle.report.page import Section


@cache
def plan(problem: CheckpointProblem = COPYING) -> Plan[CheckpointDecisions]:
    return plan_checkpoint(problem, options=CheckpointOptions("ring"))


@cache
def section() -> Section:
    return checkpoint_section("racks", plan())


def labels(svg: str) -> list[str]:
    return re.findall(r">([^<>]+)</text>", svg)


def test_an_iteration_is_drawn_with_what_each_row_does() -> None:
    iteration, _ = section().pictures
    assert {"training", "link", "copy engine", "copy 1", "out of buffers", "own copy", "computation"} <= {
        *labels(iteration.svg)
    }
    assert "it ends after 139 ns, planned 129 ns" in iteration.caption


def test_bars_are_the_tasks_that_take_time() -> None:
    decisions = plan().decisions
    tasks, schedule = tasks_of(decisions), happens(decisions)
    bars = bars_of(tasks, schedule)
    for row in ("training", "link", "copy engine"):
        busy = sum(task.duration for task in tasks if task.resources == (row,))
        assert round(1e3 * sum(bar.duration_us for bar in bars if bar.row == row)) == busy


def test_each_copy_of_each_state_is_drawn_where_it_is_held() -> None:
    _, holders = section().pictures
    assert "machine 1 holds copy 1 of 0" in holders.svg
    assert "machine 1 holds own state of 1" in holders.svg
    assert holders.svg.count("<title>") == 12
    assert holders.caption == "Which machine holds whose state. Lines part failure domains."


def test_of_many_machines_the_first_are_drawn() -> None:
    many = replace(PROBLEM, machines=100)
    assert holders_svg(plan(many).decisions).count("<title>") == 2 * DRAWN_MACHINES - 1


def test_tables_say_what_survives_and_what_failures_waste() -> None:
    survival, waste, spans = section().tables
    assert survival.rows[1] == ("2 machines", "60.00%", "9 of 15")
    assert [row[0] for row in waste.rows] == ["in memory", "on storage", "on storage, back to back"]
    assert [row[:2] for row in spans.rows] == [("begin", "first"), ("first", "second"), ("second", "update")]


def test_the_cards_say_how_often_what_survives_and_what_it_takes() -> None:
    cards = {card.label: card for card in checkpoint_cards(plan())}
    assert cards["checkpoints"].value == f"every {plan().decisions.every} iterations"
    assert cards["may be lost"].value == "any 1 machine"
    assert "2 machines 60.00%" in cards["may be lost"].note
    assert cards["host memory"].value == "96 B"
    assert "on storage, back to back" in cards["checkpoints"].note
    assert cards["result"].value == "checked, not run"
    alone = {card.label: card for card in checkpoint_cards(plan(replace(COPYING, copies=1, host_bytes=1000)))}
    assert (alone["may be lost"].value, alone["may be lost"].good) == ("none for sure", False)
    assert alone["host memory"].note == "two versions of 1 state; 1000 B are allowed"


def test_simulate_says_what_happens_next_to_what_is_planned() -> None:
    said = ROOM.simulated(plan(), TARGETS.timeline(plan()))
    assert said.headline == "0.139 us simulated, 0.129 us planned for an iteration with a checkpoint"
    assert said.facts["checkpoint_us"] == plan().decisions.checkpoint_ns / 1000
    assert said.lines[0].startswith("how often ")
    assert [line.split()[0] for line in said.lines[3:]] == ["copy", "link", "training"]


def test_no_chance_is_rounded_to_certainty() -> None:
    decisions = plan_checkpoint(replace(PROBLEM, machines=300, copies=3)).decisions
    shares = [chance(each, decisions) for each in decisions.survival]
    assert shares == ["100.00%", "100.00%", "> 99.99%", "99.99%", "99.98%"]
    rounded = replace(decisions.survival[2], probability=1.0, kept=None, sets=None)
    assert not certain(rounded, decisions)
    assert chance(rounded, decisions) == "> 99.99%"
    assert chance(replace(rounded, probability=1e-9), decisions) == "< 0.01%"
    assert chance(replace(rounded, probability=0.0), decisions) == "0.00%"


def test_a_machine_that_no_other_can_replace_is_not_priced() -> None:
    alone = plan(replace(COPYING, copies=1, persistent=None))
    assert checkpoint_cards(alone)[0].note.endswith("a hardware failure wastes all training in the mean")
    assert [row[4:] for row in waste_rows(alone)] == [("all training", "-")]
    assert any("--storage" in line for line in remarks(alone.decisions.problem))
    assert "1 machine holds each state" in dict(lines(alone))["holders"]


def test_the_picture_of_one_machine_counts_in_whole_machines() -> None:
    alone = plan(replace(PROBLEM, machines=1, copies=1)).decisions
    assert labels(holders_svg(alone)).count("0") == 2
    assert not [label for label in labels(holders_svg(alone)) if "." in label]
