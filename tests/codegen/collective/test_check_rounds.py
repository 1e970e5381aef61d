"""The checker of rounds finds whatever keeps ranks waiting or makes values wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.codegen.collective.algorithms import ring_allreduce
from treadle.codegen.collective.check_rounds import check_rounds
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.rounds import RankRounds, Round, Transmission, rounds_of

PROGRAM = lower(ring_allreduce(3), inplace=True)
Change = Callable[[tuple[Round, ...]], tuple[Round, ...]]


def with_rounds(change: Change, rank: int = 1, **other: int) -> list[str]:
    """The findings when the rounds of one rank are changed."""
    ranks = list(rounds_of(PROGRAM, inplace=True))
    ranks[rank] = replace(ranks[rank], rounds=change(ranks[rank].rounds), **other)
    return check_rounds(PROGRAM, ranks, inplace=True)


def at(number: int, **fields: object) -> Change:
    return lambda rounds: (*rounds[:number], rounds[number]._replace(**fields), *rounds[number + 1 :])


def test_as_made_nothing_is_found() -> None:
    assert with_rounds(lambda rounds: rounds) == []


def test_a_missing_receive_is_a_deadlock_that_names_who_waits_for_whom() -> None:
    found = with_rounds(at(3, receives=()))
    assert "gpu 0 round 3: deadlock: its send to gpu 1 meets nothing" in found


def test_sends_and_receives_in_separate_groups_are_a_deadlock() -> None:
    """Every rank sends first and receives then: each send waits for a receive that comes after another send."""

    def apart(own: RankRounds) -> RankRounds:
        first, *rest = own.rounds
        return replace(own, rounds=(first._replace(receives=()), Round((), (), first.receives), *rest))

    ranks = [apart(own) for own in rounds_of(PROGRAM, inplace=True)]
    found = check_rounds(PROGRAM, ranks, inplace=True)
    assert [text.split(":")[1] for text in found] == [" deadlock"] * 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rounds: (rounds[1], rounds[0], *rounds[2:]), "expected"),
        (at(1, local=()), "ends as"),
        (at(0, receives=(Transmission(0, ("t", 2, 1)),)), "the buffer has 2 chunks"),
        (at(0, sends=(Transmission(1, ("i", 0, 1)),)), "a message with gpu 1, expected another of 3"),
        (at(0, receives=(Transmission(0, ("i", 1, 1)),)), "is read while it is written"),
        (lambda rounds: (*rounds, rounds[-1]), "deadlock"),
    ],
)
def test_what_is_wrong_is_found(change: Change, words: str) -> None:
    found = with_rounds(change)
    assert any(words in text for text in found), found


def test_a_message_of_another_size_is_found() -> None:
    (place,) = [place for _, place in rounds_of(PROGRAM, inplace=True)[1].rounds[0].sends]
    found = with_rounds(at(0, sends=(Transmission(2, ("i", 0, 2)),)))
    assert place[2] == 1
    assert found[0].startswith("gpu 2 round 0: receives 1 chunks from gpu 1, which sends 2 in its round 0")


def test_values_that_nothing_wrote_are_found() -> None:
    found = with_rounds(at(0, sends=(Transmission(2, ("t", 0, 1)),)))
    assert any("staging chunk 0" in text for text in found)


def test_an_input_that_must_stay_is_guarded() -> None:
    program = lower(ring_allreduce(3))
    ranks = list(rounds_of(program, inplace=False))
    first = ranks[0].rounds[0]
    ranks[0] = replace(
        ranks[0], rounds=(first._replace(receives=(Transmission(2, ("i", 1, 1)),)), *ranks[0].rounds[1:])
    )
    assert any("which an out-of-place call must keep" in text for text in check_rounds(program, ranks, inplace=False))
