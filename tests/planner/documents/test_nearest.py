"""What messages say about a name that is none of those known."""

from __future__ import annotations

import pytest

from treadle.planner.documents.nearest import MOST, meant, nearest, unknown, with_article

PROFILES = ["dgx1", "dgx2", "ndv2", "ring4"]


@pytest.mark.parametrize(
    ("found", "near"),
    [("ndv3", "ndv2"), ("NDV2", "ndv2"), ("rng4", "ring4"), ("ri", "ring4"), ("dg", None), ("tpu", None), ("", None)],
)
def test_a_close_name_is_the_one_that_was_meant(found: str, near: str | None) -> None:
    assert nearest(found, PROFILES) == ([near] if near else [])


def test_equally_close_names_are_all_offered() -> None:
    assert unknown("dgx3", PROFILES) == "found 'dgx3', did you mean 'dgx1' or 'dgx2'?"


def test_a_message_names_the_close_name_or_all() -> None:
    assert unknown("ndv3", PROFILES) == "found 'ndv3', did you mean 'ndv2'?"
    assert unknown("tpu", PROFILES) == "found 'tpu', expected one of dgx1, dgx2, ndv2, ring4"
    assert meant("x", []) == "expected none"


def test_a_long_list_is_cut() -> None:
    message = meant("other", [f"model{number:03}" for number in range(100)])
    assert message.endswith(f"model{MOST - 1:03}, ...")


def test_no_option_is_offered_for_a_word_that_shares_few_letters() -> None:
    assert nearest("--bogus", ["--verbose", "--version"]) == []


def test_a_name_gets_the_article_that_it_is_read_with() -> None:
    assert [with_article(name) for name in ("memory plan", "aggregation plan")] == [
        "a memory plan",
        "an aggregation plan",
    ]
