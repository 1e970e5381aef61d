"""The first cards of every plan: fits, memory saved, time, same numbers; good or bad news, and how it is known."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.planner.passes.memory.test_choices import decisions
from tests.planner.samples import DOCUMENTS
from treadle.passes.memory.cards import measured_cards, memory_cards
from treadle.planner.documents.plan import Plan
from treadle.report.cards import bound_card, certificate_cards, fits_card, saved_card, time_card
from treadle.report.sections import glance, plan_cards

MIB = 2**20
PLANS = {kind: plan for kind, plan in DOCUMENTS.items() if isinstance(plan, Plan)}


def test_fits_says_by_how_much() -> None:
    assert fits_card(6 * MIB, 8 * MIB, "predicted peak")[1:3] == ("by 2 MiB", True)
    assert fits_card(8 * MIB, 8 * MIB, "predicted peak")[1:3] == ("exactly", True)
    over = fits_card(9 * MIB, 8 * MIB, "measured peak")
    assert over[1:] == ("does not fit", False, "measured peak 9 MiB, budget 8 MiB: 1 MiB too much")


def test_memory_is_saved_in_bytes_and_share_or_not_at_all() -> None:
    assert saved_card("memory saved", 6 * MIB, 8 * MIB, "plain PyTorch", "measured") == (
        "memory saved",
        "2 MiB (25%)",
        True,
        "measured: peak 6 MiB, plain PyTorch 8 MiB",
    )
    assert saved_card("memory saved", 10 * MIB, 8 * MIB, "x", "measured")[1:3] == ("none: 2 MiB more (25%)", False)


@pytest.mark.parametrize(
    ("time", "value", "good"),
    [(2.0e6, "100.0% longer", None), (0.9e6, "10.0% shorter", True), (1.0e6, "the same", True)],
)
def test_time_is_never_hidden(time: float, value: str, good: bool | None) -> None:
    card = time_card("step time", time, 1e6, "plain PyTorch", "predicted")
    assert card[1:3] == (value, good)
    assert card.note.startswith("predicted: ")
    assert card.note.endswith("plain PyTorch 1 ms")


def test_a_memory_plan_has_the_four_cards_in_their_order() -> None:
    labels = ["fits", "memory saved", "step time", "same numbers"]
    assert [card.label for card in memory_cards(decisions())] == labels
    slower = memory_cards(replace(decisions(), objective_ns=10**6))[2]
    assert "longer" in slower.value
    assert memory_cards(decisions())[3].value == "checked, not run"
    assert [card.label for card in measured_cards(3, 2, 4)] == labels[:2]
    assert measured_cards(3, 2, 4)[0].good is False


@pytest.mark.parametrize("kind", PLANS)
def test_every_plan_has_cards_that_say_how_they_are_known(kind: str) -> None:
    cards = plan_cards(PLANS[kind])
    assert 3 <= len(cards) <= 4
    assert len({card.label for card in cards}) == len(cards)
    assert all(card.value and card.note for card in cards)
    assert any(card.value == "checked, not run" for card in cards)


def test_a_pass_without_cards_has_those_of_its_certificate() -> None:
    plan = next(iter(PLANS.values()))
    assert [card.label for card in certificate_cards(plan)] == ["predicted time", "gap to the lower bound", "result"]
    proved = replace(plan, certificate=replace(plan.certificate, optimal=True))
    assert bound_card(proved)[1:3] == ("0%", True)


def test_plans_at_a_glance_are_a_row_each() -> None:
    (section,) = glance(PLANS)
    assert sorted(row[0] for table in section.tables for row in table.rows) == sorted(PLANS)
    assert all(len(row) == len(table.head) for table in section.tables for row in table.rows)
