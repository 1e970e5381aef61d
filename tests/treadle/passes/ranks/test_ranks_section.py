"""The section of the report on an order of hosts: what other orders cost, two heat maps, the hosts with their ranks."""

from __future__ import annotations

import re
from functools import cache

from msgspec.structs import replace

from tests.planner.passes.ranks.instances import planted, racks, ranks_problem
from tests.planner.samples import RANKS_PLAN
from treadle.codegen.ranks.room import ROOM as TARGETS
from treadle.passes.ranks.cards import ranks_cards
from treadle.passes.ranks.figure import CELLS, orders_svg
from treadle.passes.ranks.room import ROOM
from treadle.passes.ranks.section import ranks_section
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.ranks.decided import decided
from treadle.planner.passes.ranks.decisions import RanksDecisions
from treadle.planner.passes.ranks.problem import RankedHost
from treadle.report.page import Section

SLOTTED = tuple(RankedHost(name=name, slots=4) for name in ("a", "$b$", "<c>", "d"))


@cache
def plan() -> Plan[RanksDecisions]:
    """Two racks whose hosts were handed out alternately: 11 in the planned order, 20 as they were."""
    problem = replace(ranks_problem(racks(4, 2), "double-tree"), hosts=SLOTTED)
    return replace(RANKS_PLAN, decisions=decided(problem, (0, 1, 2, 3), (0, 2, 1, 3)))


@cache
def section() -> Section:
    return ranks_section("step", plan())


def test_tables_compare_orders_and_give_the_ranks_of_each_host() -> None:
    costs, order = section().tables
    assert costs.rows[0] == ("planned", "11 ns", "1.000")
    assert costs.rows[3] == ("worst found", "20 ns", "1.818")
    assert order.rows[1] == ("$b$", "1", "4 to 7", "1")
    assert "4 hosts for double-tree, latencies only" in section().text


def test_both_orders_are_drawn_without_images_and_with_names_as_text() -> None:
    (picture,) = section().pictures
    assert {"as handed out", "planned order"} <= {*re.findall(r">([^<>]+)</text>", picture.svg)}
    assert "&lt;c&gt; - d: 1 ns" in picture.svg
    assert "data:image" not in picture.svg
    assert orders_svg(plan().decisions) == picture.svg


def test_of_many_hosts_a_cell_is_the_mean_of_several_places() -> None:
    count = 3 * CELLS
    problem = ranks_problem(planted(count, 4, 1), "ring")
    order = tuple(range(count))
    svg = orders_svg(decided(problem, order, order))
    assert 2 * CELLS * CELLS <= svg.count("<path") < 2 * CELLS * CELLS + 600
    assert f">h{count - 1}<" not in svg


def test_one_card_says_that_nothing_was_run() -> None:
    cards = {card.label: card for card in ranks_cards(plan())}
    assert cards["result"].value == "checked, not run"
    assert cards["cost of the order"].value == "the same"
    assert cards["random orders cost"].value == f"{plan().decisions.median_ns / 11:.2f}x"
    assert "the worst order found 20 ns or 1.82x" in cards["random orders cost"].note


def test_the_timeline_of_every_algorithm_ends_when_the_plan_does() -> None:
    rates, order = planted(12, 3, 5), (3, 1, 4, 0, 5, 9, 2, 6, 8, 7, 10, 11)
    for algorithm in ("ring", "halving-doubling", "tree", "double-tree", "bcube", "nccl-ring", "nccl-tree", "plan"):
        factors = (3, 4) if algorithm == "bcube" else None
        problem = ranks_problem(planted(12, 3, 4), algorithm, rates=rates, size=2**20, factors=factors)
        decisions = decided(problem, order, order)
        timeline = TARGETS.timeline(replace(RANKS_PLAN, decisions=decisions))
        assert timeline.schedule.makespan == decisions.time_ns > 0, algorithm
    said = ROOM.simulated(plan(), TARGETS.timeline(plan()))
    assert any(line.startswith("tree 1 down: $b$ -> <c>") for line in said.lines)
    assert said.facts["original_us"] == 0.011
