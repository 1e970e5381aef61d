"""The section of the report on an index plan: predictions and measurements, windows, tables, cards."""

from __future__ import annotations

import re

from msgspec.structs import replace

from tests.planner.passes.index.index_plans import PROBLEM, problem_of, small_plan, unmeasured
from treadle.passes.index.cards import index_cards
from treadle.passes.index.figure import ranking_svg, window_edges, windows_svg
from treadle.passes.index.room import ROOM
from treadle.passes.index.section import index_section
from treadle.passes.index.words import leaves_words, mix_words, workload_words
from treadle.passes.interface import SectionContext
from treadle.planner.documents.plan import InputRef
from treadle.planner.passes.index.configurations import FragmentedLog
from treadle.planner.passes.index.planning import plan_index
from treadle.planner.passes.index.problem import WorkloadFiles

ANYWHERE = SectionContext(None, {})


def labels(svg: str) -> list[str]:
    return re.findall(r">([^<>]+)</text>", svg)


def pointed(svg: str) -> list[str]:
    return re.findall(r"<title>([^<>]+)</title>", svg)


def test_every_configuration_is_drawn_by_rank_with_its_measurement() -> None:
    ranking, _ = ROOM.section("small", small_plan(), ANYWHERE).pictures
    assert {"chosen: gapped array 1/8", "gapped arrays, predicted", "gapped arrays, measured"} <= set(
        labels(ranking.svg)
    )
    assert pointed(ranking.svg)[:2] == [
        "1: gapped array 2/2\npredicted 2.5 ns\nmeasured 9 ns",
        "2: gapped array 2/8\npredicted 5 ns\nmeasured 7.75 ns",
    ]
    assert pointed(ranking.svg)[-1] == "6: gapped array 1/2\npredicted 22.5 ns"


def test_throughput_is_drawn_over_the_windows_of_the_trace() -> None:
    windows = windows_svg(small_plan().decisions)
    assert {"chosen: gapped array 1/8", "others measured", "million operations/s"} <= set(labels(windows))
    first = pointed(windows)[0].splitlines()
    assert len(pointed(windows)) == 4
    assert first[0] == "gapped array 1/8: 115 million/s"
    assert [*window_edges(40, 4)] == [0, 10, 20, 30, 40]


def test_tables_have_what_was_measured_and_all_predictions() -> None:
    measured, predictions = index_section("", small_plan()).tables
    assert [(row[0], row[1], row[-1]) for row in measured.rows] == [
        ("gapped array 2/8", "2", "too much memory"),
        ("gapped array 1/8", "4", "chosen"),
        ("gapped array 2/2", "1", ""),
        ("gapped array 1/32", "3", ""),
    ]
    assert [row[1] for row in predictions.rows] == ["1", "2", "3", "4", "5", "6"]


def test_the_text_says_what_was_predicted_measured_and_lost() -> None:
    text = index_section("", small_plan()).text
    for part in (
        "Workload: keys like books, 100 loaded; 20 lookups and 20 inserts.",
        "350 ns, 8.75 ns an operation, measured; 0.88x of the 400 ns predicted.",
        "1.3x of its keys and payloads; 1.5x allowed, which 1 of the measured ones exceed.",
        "Second best: gapped array 2/2 takes 360 ns, 1.03x.",
        "Predicted by the model 'evaluator', measured on one core of a-machine.",
    ):
        assert part in text


def test_a_plan_that_measured_nothing_says_so() -> None:
    section = index_section("", unmeasured())
    assert len(section.pictures) == 1
    assert len(section.tables) == 1
    assert "an operation, predicted." in section.text
    assert "measured on" not in section.text
    assert index_cards(unmeasured())[0].note == "predicted, not measured"


def test_the_cards_have_the_time_the_leaves_the_bound_and_the_check() -> None:
    cards = index_cards(small_plan())
    assert [card.label for card in cards] == ["an operation", "leaves", "gap to the lower bound", "result"]
    assert cards[0].value == "8.75 ns"
    assert cards[1].value == "gapped array 1/8"
    assert cards[-1].value == "checked, not run"
    assert ROOM.cards(small_plan(), ANYWHERE) == cards


def test_words_for_files_parts_and_fragmented_logs() -> None:
    files = WorkloadFiles(
        keys=InputRef(file="keys.npy", digest="sha256:" + "0" * 64),
        operations=InputRef(file="ops.txt", digest="sha256:" + "1" * 64),
    )
    problem = replace(PROBLEM, workload=files, whole=1000, scans=1, deletes=2)
    assert workload_words(problem) == (
        "keys of keys.npy, 100 loaded; 20 lookups, 20 inserts, 2 deletes and 1 scan, the first of 1000"
    )
    assert mix_words(replace(PROBLEM, lookups=0)) == "20 inserts"
    assert leaves_words(FragmentedLog(fragment_keys=64, most_fragments=512, new_fragments=8)) == (
        "fragmented log 64/512/8: up to 64 keys in a fragment, 512 fragments in a leaf, 8 in a new one"
    )


def test_one_candidate_and_hostile_names_are_drawn_as_they_are() -> None:
    plan = plan_index(problem_of((300,), (310,), name="</svg><script>", machine="<b>", model="<i>"))
    assert "<script>" not in ranking_svg(plan.decisions) + windows_svg(plan.decisions)
