"""The section of the report: lanes of the plan and of its rivals, tables, cards, and words."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.codegen.compression.compression_plans import IN_NODES, compressed, plan_with, small_decisions, small_problem
from treadle.cli.main import run
from treadle.passes import room_of
from treadle.passes.compression.cards import compression_cards
from treadle.passes.compression.figure import LANES
from treadle.passes.compression.section import compression_section, exchange_of, span_of
from treadle.passes.compression.words import compressed as compressed_in
from treadle.passes.compression.words import percent, reason, sent
from treadle.planner.documents import store
from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.passes.compression.decided import decided, plain_groups
from treadle.planner.passes.compression.decisions import GradientGroup
from treadle.planner.passes.compression.problem import Gradient


def test_lanes_hold_every_task_and_show_where_the_device_is_shared() -> None:
    problem = small_problem()
    exchange = exchange_of(problem, compressed(problem), "this plan")
    by_lane = {lane: [bar for bar in exchange.bars if bar.row == lane] for lane in LANES}
    assert [bar.label for bar in by_lane["backward"]] == ["head.weight", "body.weight", "body.bias"]
    assert [bar.label for bar in by_lane["encode, decode"]] == ["encode 0", "decode 0", "encode 1-2", "decode 1-2"]
    assert {bar.group for bar in by_lane["links"]} == {"inside nodes", "between nodes"}
    bias, encoding = by_lane["backward"][2], by_lane["encode, decode"][0]
    assert bias.start_us == encoding.start_us + encoding.duration_us
    assert exchange.end_us > exchange.backward_us == bias.start_us + bias.duration_us


def test_the_section_draws_the_plan_and_its_rivals() -> None:
    section = compression_section("exchange", plan_with(small_decisions()))
    (picture,) = section.pictures
    titles = re.findall(r">([^<]*): [\d.,]+ ms an iteration", picture.svg)
    assert titles == ["this plan", "uncompressed", "HiTopKComm"]
    rivals, groups = section.tables
    assert [row[0] for row in rivals.rows] == titles
    assert [row[3] for row in rivals.rows] == ["3 of 3", "0 of 3", "3 of 3"]
    assert [row[0] for row in groups.rows] == ["0", "1-2"]
    assert "3 of 3 gradients are compressed: dgc:0.01 for 2 groups." in section.text


def test_a_plan_that_compresses_nothing_says_why() -> None:
    problem = replace(small_problem(), inter=GradientLink(alpha_us=1, beta_us_per_MB=50))
    decisions = decided(problem, plain_groups(problem))
    plan = plan_with(decisions)
    assert compressed_in(decisions).groups == {}
    assert reason(plan).startswith("links cost less than encoding: the exchange as it is adds ")
    assert "Nothing is compressed: links cost less" in compression_section("", plan).text
    card = compression_cards(plan)[1]
    assert (card.value, card.note) == ("nothing", reason(plan))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"machines": 1, "devices": 1}, "a single rank exchanges no gradients"),
        ({"compressors": ()}, "the problem has no compressor"),
        ({"compressions": 0}, "the problem allows no encoding (compressions: 0)"),
        (
            {"gradients": (Gradient(name="bias", elements=1, backward_ns=1),)},
            "no payload is smaller than the gradients: dgc:0.01 makes 8 B of 4 B",
        ),
        (
            {"inter": GradientLink(alpha_us=1, beta_us_per_MB=10**5)},
            "nothing that was tried with a compressor takes less time: the exchange as it is adds 598.983 ms to the "
            "operators",
        ),
    ],
)
def test_other_reasons_to_compress_nothing(changes: dict[str, object], words: str) -> None:
    problem = replace(small_problem(), **changes)
    plan = plan_with(decided(problem, plain_groups(problem)))
    assert reason(plan) == words


def test_a_search_that_was_cut_proves_nothing_about_compression() -> None:
    problem = replace(small_problem(), inter=GradientLink(alpha_us=1, beta_us_per_MB=1000))
    plain = plain_groups(problem)
    small = GradientGroup(first=2, last=2, compressor="dgc:0.01", steps=IN_NODES)
    plan = plan_with(decided(problem, plain, {"espresso": (*plain[:2], small)}))
    words = (
        "compression saves no time: the exchange as it is adds 4.63308 ms to the operators, that of espresso 4.63308 ms"
    )
    assert reason(plan) == words
    cut = replace(plan, provenance=replace(plan.provenance, limit_fired=True))
    assert reason(cut) == "the search was cut short before it found a plan that compresses and takes less time"


def test_rivals_whose_method_was_cut_are_marked() -> None:
    groups = small_decisions().rivals[1].groups
    decisions = decided(small_problem(), groups, {"espresso": groups}, cut=["espresso"])
    rivals = compression_section("", plan_with(decisions)).tables[0]
    assert [row[0] for row in rivals.rows] == ["this plan", "uncompressed", "espresso (cut short)"]


def test_a_single_rank_is_compared_with_nothing() -> None:
    problem = replace(small_problem(), machines=1, devices=1)
    decisions = decided(problem, plain_groups(problem))
    assert decisions.rivals == ()
    section = compression_section("", plan_with(decisions))
    assert [table.head[0] for table in section.tables] == ["group"]
    assert section.text.startswith("Nothing is compressed: a single rank exchanges no gradients.")


@pytest.mark.parametrize(
    ("share", "words"), [(0, "0.0%"), (1e-9, "<0.1%"), (0.5, "50.0%"), (1 - 1e-9, ">99.9%"), (1, "100.0%")]
)
def test_all_and_nothing_are_said_of_no_other_share(share: float, words: str) -> None:
    assert percent(share) == words


@pytest.mark.parametrize(
    ("steps", "words"), [(("reduce@flat", "broadcast@flat"), "at most 8 MiB"), (("allreduce@flat",), "6 MiB")]
)
def test_bytes_are_a_bound_where_ranks_send_unequally(steps: tuple[str, ...], words: str) -> None:
    problem = replace(small_problem(), gradients=small_problem().gradients[:1])
    assert sent(decided(problem, (GradientGroup(first=0, last=0, steps=steps),))) == words


def test_an_exchange_that_is_hidden_needs_no_compression() -> None:
    problem = replace(small_problem(), devices=1, intra=None, inter=GradientLink(beta_us_per_MB=0))
    assert "hidden behind the backward pass" in reason(plan_with(decided(problem, plain_groups(problem))))


def test_simulate_and_report_take_a_compression_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_with(small_decisions())
    store.save(plan, tmp_path / "exchange.json")
    assert run(["simulate", str(tmp_path / "exchange.json"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["time_us"] == plan.prediction.time_us
    assert run(["report", str(tmp_path / "exchange.json"), "-o", str(tmp_path / "page.html")]) == 0
    assert "HiTopKComm" in (tmp_path / "page.html").read_text()
    assert room_of(plan).cards(plan, None)[0].label == "iteration time"  # type: ignore[arg-type]


def test_groups_are_named_by_the_numbers_of_their_gradients() -> None:
    one, other = compressed(small_problem())
    assert (span_of(one), span_of(other)) == ("0", "1-2")
