"""The timelines next to a page: every plan is a process of its own, and the page names the file that was written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from lxml import etree

from tests.planner.passes.swap import cases
from tests.planner.samples import DOCUMENTS
from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.report.page import Page, render
from treadle.report.timelines import timelines, timelines_file

PLANS = {kind: plan for kind, plan in DOCUMENTS.items() if isinstance(plan, Plan)}


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan that its check accepts."""
    folder = tmp_path_factory.mktemp("plan")
    store.save(cases.figure_4_1(), folder / "problem.json")
    plan = folder / "plan.json"
    problem = str(folder / "problem.json")
    assert run(["plan", "swap", "--problem", problem, "--generations", "1", "-o", str(plan)]) == 0
    return plan


def test_every_plan_is_a_process_with_its_own_tracks() -> None:
    events = json.loads(timelines(PLANS))["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert list(names.values()) == list(PLANS)
    assert {event["pid"] for event in events if event["ph"] == "X"} == set(names)
    assert all(event["tid"] != event["pid"] for event in events)
    assert timelines(PLANS) == timelines(PLANS)


def test_one_plan_has_the_timeline_that_simulate_writes(
    plan_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(plan_file, "m.json")
    assert run(["report", "m.json", "-o", "r.html"]) == 0
    assert run(["simulate", "m.json", "--perfetto", "s.json"]) == 0
    one, other = (json.loads(Path(name).read_text())["traceEvents"] for name in ("r.perfetto.json", "s.json"))
    spans = [[event for event in events if event["ph"] == "X"] for events in (one, other)]
    assert spans[0] == spans[1] != []


def test_the_page_links_the_file_only_where_there_is_one(
    plan_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(plan_file, "a b.json")
    assert run(["report", "a b.json", "-o", "a b.html"]) == 0
    assert "a b.perfetto.json" in capsys.readouterr().out
    tree = etree.HTML(Path("a b.html").read_text())
    assert "a%20b.perfetto.json" in tree.xpath("//a/@href")
    assert Path("a b.perfetto.json").is_file()
    assert "perfetto" not in render(Page("none", ""))
    assert run(["report", "a b.json", "-o", "a.svg"]) == 0
    assert not timelines_file("a.svg").exists()


def test_check_and_report_pass_over_it(
    plan_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(plan_file, "m.json")
    assert run(["report", "m.json", "-o", "r.html"]) == 0
    assert run(["check", "m.json", "r.perfetto.json"]) == 0
    assert "passed over r.perfetto.json" in capsys.readouterr().err
    assert run(["report", "m.json", "r.perfetto.json", "-o", "r.html"]) == 0
    assert run(["report", "r.perfetto.json", "-o", "q.html"]) == 2
    assert not Path("q.html").exists()
