"""The section of the report: bars of every scheme, tables of gradients, of the theorem's cases and of hash memory."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.planner.passes.sparse.test_check import good
from treadle.cli.main import run
from treadle.passes.sparse.cards import sparse_cards
from treadle.passes.sparse.figure import SchemeBar, schemes_svg
from treadle.passes.sparse.section import sparse_section
from treadle.planner.documents import store
from treadle.planner.passes.sparse.planning import plan_sparse
from treadle.planner.passes.sparse.schemes import SCHEMES
from treadle.report.page import Section

PLAN = plan_sparse(good().problem)


@cache
def section() -> Section:
    return sparse_section("emb", PLAN)


def test_every_scheme_of_every_gradient_is_drawn_the_fastest_first() -> None:
    pictures = section().pictures
    assert [picture.caption.split(":")[0] for picture in pictures] == [
        "Gradient skewed",
        "Gradient even",
        "Gradient apart",
        "Gradient full",
    ]
    drawn = re.findall(r">([a-z-]+)(?: \N{BLACK RIGHT-POINTING TRIANGLE})?</text>", pictures[0].svg)
    costs = PLAN.decisions.gradients[0].costs
    assert drawn == [each.scheme for each in sorted(costs, key=lambda cost: cost.time_ns)]
    assert set(drawn) == {scheme.name for scheme in SCHEMES}
    assert ">zen \N{BLACK RIGHT-POINTING TRIANGLE}<" in pictures[0].svg
    assert "No scheme that the plan may choose takes less than the dense" in pictures[3].caption


def test_tables_say_the_case_of_the_theorem_and_the_hash_memory() -> None:
    gradients, cases, memory, schemes = section().tables
    chosen = ["zen", "ranges", "dense", "hierarchy-one-shot-centralized"]
    assert [row[4] for row in gradients.rows] == chosen
    # 3/4 of 10,000 and 25,000 against 10,000 and 17,000; 3/4 of 1,000 and 2,900 against 1,000 and 1,700.
    assert [row[2:5] for row in cases.rows] == [
        ("26,250", "27,000", "balanced parts"),
        ("26,250", "27,000", "balanced parts"),
        ("142,500", "190,000", "balanced parts"),
        ("2,925", "2,700", "incremental hierarchy"),
    ]
    assert memory.rows == (("skewed", "13,000", "4", "6,500", "650", "111.7 KiB"),)
    assert [row[1] for row in schemes.rows if row[-1] == "chosen"] == chosen
    assert {row[5] for row in schemes.rows if row[1] == "ring-incremental-centralized"} == {
        "differs between participants"
    }


def test_a_bar_beyond_the_axis_says_its_time() -> None:
    bars = [SchemeBar("zen", 10_000, 2_000, chosen=True), SchemeBar("dense", 900_000, 0, allowed=False)]
    svg = schemes_svg(bars, 900_000, 9_000)
    assert "> 900 us \N{RIGHTWARDS ARROW}<" in svg
    assert "> 12 us<" in svg
    assert "sums in another order" in svg


def test_a_single_participant_exchanges_nothing() -> None:
    alone = tuple(
        replace(each, unions=each.unions[:1], even=each.unions[:1], hashed=each.unions[:1])
        for each in PLAN.decisions.problem.gradients[:1]
    )
    plan = plan_sparse(replace(PLAN.decisions.problem, machines=1, inter=None, gradients=alone))
    assert "1 sparse gradient on 1 node of 1 rank:" in sparse_section("", plan).text
    assert [card.value for card in sparse_cards(plan)[:3]] == ["the same", "0 of 1 gradient", "0%"]


def test_cards_state_time_schemes_and_bytes() -> None:
    time, schemes, _, _ = sparse_cards(PLAN)
    assert (time.label, time.value) == ("exchange time", "63.6% shorter")
    assert schemes.value == "3 of 4 gradients"
    used, _, sent = schemes.note.partition("; ")
    assert used == "1 by zen, 1 by ranges, 1 by dense, 1 by hierarchy-one-shot-centralized"
    assert sent == "3.24 MiB of 9.155 MiB between nodes"


def test_simulate_and_report_take_a_sparse_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.save(PLAN, tmp_path / "sparse.json")
    assert run(["simulate", str(tmp_path / "sparse.json"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["time_us"] == PLAN.prediction.time_us
    assert facts["dense_us"] == PLAN.decisions.dense_ns / 1000
    assert run(["report", str(tmp_path / "sparse.json"), "-o", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "exchanged as sparse" in page
    assert "incremental hierarchy" in page
