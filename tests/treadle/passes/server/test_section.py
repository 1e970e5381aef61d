"""The section of the report on a server plan: parts with their bottleneck, cores with their chunks, tables, cards."""

from __future__ import annotations

import re
from functools import cache

from msgspec.structs import replace

from tests.planner.passes.server.server_plans import LAB, PROBLEM, RACKS
from treadle.passes.server.cards import server_cards, workers_card
from treadle.passes.server.figure import CoreRow, chunks_svg
from treadle.passes.server.room import ROOM
from treadle.passes.server.section import DRAWN_PARTS, server_section
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.server.decided import ServerOptions
from treadle.planner.passes.server.decisions import PartLoad, ServerDecisions
from treadle.planner.passes.server.planning import plan_server
from treadle.planner.passes.server.problem import ServerProblem
from treadle.report.page import Section


@cache
def plan(problem: ServerProblem = PROBLEM, chunk_bytes: int = 32768) -> Plan[ServerDecisions]:
    return plan_server(problem, options=ServerOptions(chunk_bytes=chunk_bytes, policy="key-by-interface"))


@cache
def section(problem: ServerProblem = PROBLEM) -> Section:
    return server_section("rack", plan(problem))


def labels(svg: str) -> list[str]:
    return re.findall(r">([^<>]+)</text>", svg)


def test_every_part_is_drawn_with_its_load_and_the_slowest_one_is_marked() -> None:
    parts, _ = section().pictures
    shown = labels(parts.svg)
    assert [each.part for each in plan().decisions.parts if each.part != "computation"] == [
        each for each in shown if each.split(" ")[0] in ("interface", "slot", "bridge", "memory", "core", "worker")
    ]
    assert "393.216 us: 384 KiB at 1 GB/s" in shown
    assert "488.008 us: 2.792 MiB at 6 GB/s" in shown
    assert parts.caption.endswith("Bottleneck: bridge.")
    assert "computation" not in shown  # which lasts more than twice as long


def test_cores_are_drawn_with_the_keys_that_they_handle() -> None:
    _, chunks = section().pictures
    shown = labels(chunks.svg)
    assert {"eth0, core 0.0", "eth3, core 1.1", "head", "body", "stem", "an even share"} <= set(shown)
    assert "64 KiB, 2 chunks" in shown
    assert "body: 32 KiB" in chunks.svg
    assert "which keys each core of the server handles" in chunks.caption.lower()


def test_keys_without_a_colour_of_their_own_are_drawn_together() -> None:
    keys = tuple(replace(PROBLEM.keys[0], name=f"k{number}", elements=1000 + number) for number in range(12))
    _, chunks = server_section("many", plan(replace(PROBLEM, keys=keys))).pictures
    assert {"k11", "k5", "5 other keys"} <= set(labels(chunks.svg))
    assert "k4" not in labels(chunks.svg)


def test_of_many_parts_the_slowest_of_each_kind_is_drawn() -> None:
    card = PROBLEM.machine.interfaces[0]
    cards = tuple(replace(card, name=f"eth{number}", domain=number % 2) for number in range(DRAWN_PARTS))
    machine = replace(PROBLEM.machine, interfaces=cards, domains=(40, 40))
    parts, _ = server_section("wide", plan(replace(PROBLEM, machine=machine), 2048)).pictures
    assert sum(each.startswith("interface ") for each in labels(parts.svg)) == 1
    assert "only the slowest is drawn" in parts.caption


def test_tables_say_limits_levels_engines_racks_and_costs() -> None:
    limits, levels, results, costs = section().tables
    assert limits.rows[0][:2] == ("computation", "computation")
    assert limits.rows[1][1] == "bridge"
    assert [row[0] for row in levels.rows] == ["server", "domain", "interface", "core"]
    assert [(row[0], row[-1]) for row in results.rows] == [("tall", "planned"), ("wide", "")]
    assert [row[-1] for row in costs.rows] == ["", "+38.2%"]
    racks = section(RACKS).tables[3]
    assert [row[-1] for row in racks.rows] == ["", "chosen"]
    assert "first within racks and then between them" in section(RACKS).text


def test_the_cards_say_that_nothing_ran() -> None:
    cards = server_cards(plan())
    assert [card.label for card in cards] == ["exchange time", "servers carry", "gap to the lower bound", "result"]
    assert cards[-1].value == "checked, not run"
    assert "bottleneck bridge, then interface eth0 at 1.24x; a step takes 1.14386 ms" in cards[0].note
    assert workers_card(plan().decisions).value == f"up to {plan().decisions.most_workers} workers"


def test_a_plan_on_one_host_and_one_without_any_rate_are_drawn() -> None:
    assert section(LAB).pictures[0].caption.endswith("Bottleneck: shared cores.")
    free = replace(
        LAB, shared_cores=None, machine=replace(LAB.machine, memory_rate=None, work=type(LAB.machine.work)())
    )
    bare = server_section("", plan(free))
    assert bare.pictures[0].caption.endswith("No part takes time.")
    assert "no part has a rate or a cost" in server_cards(plan(free))[0].note


def test_hostile_names_stay_texts() -> None:
    row = CoreRow("<script>alert(1)</script>", (5,), 1)
    svg = chunks_svg([row], ["</svg><script>"])
    assert "<script>" not in svg
    assert PartLoad(part="<b>", time_ns=1).part == "<b>"


def test_simulate_says_when_each_engine_sends_its_first_result() -> None:
    from treadle.codegen.server.room import ROOM as TARGETS

    said = ROOM.simulated(plan(), TARGETS.timeline(plan()))
    assert said.lines[0].startswith("tall   first result of head after ")
    assert said.lines[0].endswith("(planned)")
    assert said.facts["first_results_us"]["tall"] < said.facts["first_results_us"]["wide"]
    assert said.facts["time_us"] == plan().decisions.time_ns / 1000
