"""The report's section of a fusion plan: its figures are the plan's, and every launch has a bar."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from lxml import etree
from msgspec.structs import replace

from tests.planner.machine.machines import profile
from treadle.cli.main import run
from treadle.passes.fusion.section import MOST_ROWS, fusion_section
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.fusion.decisions import FusionDecisions
from treadle.planner.passes.fusion.parsing import parse
from treadle.planner.passes.fusion.planning import plan_fusion
from treadle.planner.passes.fusion.program import Bindings
from treadle.planner.passes.fusion.ranking import FusionProblem
from treadle.report.page import Page, Section, render

EXAMPLES = Path(__file__).parents[4] / "examples" / "fusion"


@cache
def planned(name: str, ranks: int, groups: int, extents: tuple[tuple[str, int], ...]) -> Plan[FusionDecisions]:
    program = parse((EXAMPLES / f"{name}.py").read_text(), name)
    return plan_fusion(FusionProblem(program, Bindings(dict(extents), ranks, groups), profile("dgx2", groups)))


def attention() -> Plan[FusionDecisions]:
    return planned("attention", 16, 1, (("B", 8), ("H", 3072), ("S", 1024)))


def pipeline() -> Plan[FusionDecisions]:
    return planned("pipeline", 16, 2, (("B", 8), ("H", 3072), ("S", 1024)))


def section_of(plan: Plan[FusionDecisions]) -> Section:
    return fusion_section("a plan", plan)


@pytest.mark.parametrize("made", [attention, pipeline])
def test_the_text_says_what_the_plan_says(made):
    plan = made()
    text = section_of(plan).text
    decisions = plan.decisions
    assert "B = 8, H = 3,072, S = 1,024 on " in text
    assert f"{decisions.time_ns / 1000:,.1f} us, predicted" in text
    assert f"Each rank sends {decisions.volume:,.0f} elements" in text
    assert ("to the next group" in text) == (decisions.groups > 1)
    assert "fuse(a-b) one kernel" in text
    cells = {cell for table in section_of(plan).tables for row in table.rows for cell in row}
    written = next(rival for rival in decisions.rivals if rival.name.startswith("as written"))
    assert {written.name, f"{written.time_ns / decisions.time_ns:.2f}"} <= cells


def test_every_launch_has_a_bar_and_a_row_of_the_table():
    plan = attention()
    section = section_of(plan)
    names = [stage.name for stage in plan.decisions.stages]
    assert [row[0] for row in section.tables[0].rows] == names
    assert "the one before" in section.tables[0].rows[-1]
    drawing = "".join(etree.fromstring(section.pictures[0].svg.encode()).itertext())
    assert all(name in drawing for name in names)


def test_other_schedules_are_by_time_and_reasons_are_told_once():
    plan = pipeline()
    tables = {table.caption: table for table in section_of(plan).tables}
    assert len(tables) == 4
    rivals = next(table for caption, table in tables.items() if caption.startswith("The best other schedules"))
    times = [float(row[1].replace(",", "")) for row in rivals.rows]
    assert times == sorted(times)
    assert [row[0] for row in tables["Transformations taken, in this order."].rows] == [
        each.transform for each in plan.decisions.taken
    ]
    refused = tables["Transformations refused."].rows
    assert len(refused) == len(set(refused)) > 0


def test_very_many_launches_share_rows():
    plan = attention()
    stage = plan.decisions.stages[0]
    many = tuple(
        replace(stage, name=f"launch{at}", members=(f"launch{at}",), start_ns=at, end_ns=at + 1)
        for at in range(MOST_ROWS + 1)
    )
    section = section_of(replace(plan, decisions=replace(plan.decisions, stages=many)))
    assert "launch7" not in "".join(etree.fromstring(section.pictures[0].svg.encode()).itertext())


def test_a_page_of_several_plans_is_written(tmp_path, capsys):
    for name, made in (("attention", attention), ("pipeline", pipeline)):
        store.save(made(), tmp_path / f"{name}.json")
    page = tmp_path / "report.html"
    assert run(["report", str(tmp_path / "attention.json"), str(tmp_path / "pipeline.json"), "-o", str(page)]) == 0
    text = page.read_text()
    assert "Fusion: attention" in text
    assert "Fusion: pipeline" in text
    etree.HTML(render(Page("two", "plans", (), (section_of(attention()), section_of(pipeline())))))
