"""What a job says of its numbers next to plain training, where plans lose a part of the gradients and where not."""

from __future__ import annotations

import pytest

from treadle.job.numbers import compare
from treadle.job.part import MeasuredRank
from treadle.job.train import RankResult, RankTraining

PLAIN = [2.0, 1.0]
MEASURED = MeasuredRank((), 0.0)


def result(losses: list[float], exact: list[float], *, difference: float = 0.0, agree: bool = True) -> RankResult:
    plain, planned = RankTraining(PLAIN, MEASURED), RankTraining(losses, MEASURED)
    return RankResult(plain, planned, exact, difference, 1.0, agree)


def test_without_loss_the_numbers_are_the_plain_ones() -> None:
    found = compare([result(PLAIN, PLAIN)], "")
    assert [(card.label, card.good) for card in found.cards] == [("same numbers", True)]
    assert found.failures == ()
    assert len(found.table.head) == 4


def test_what_loses_may_differ_and_what_is_exact_may_not() -> None:
    found = compare([result([2.0, 1.2], PLAIN)], "dgc for 1 group")
    assert [(card.label, card.value, card.good) for card in found.cards] == [
        ("same numbers", "yes, measured", True),
        ("loss under the plans", "1.2", None),
    ]
    assert found.failures == ()
    assert found.table.rows[1] == ("2", "1.000000", "1.200000", "+2.0e-01", "1.000000")


@pytest.mark.parametrize(
    ("rank", "lossy", "failure"),
    [
        (result([2.0, 1.2], [2.0, 1.2]), "", "losses differ by 0.2 from plain DistributedDataParallel"),
        (result([2.0, 1.2], [2.0, 1.1]), "dgc", "with nothing lost, losses differ by 0.1 from plain "),
        (result(PLAIN, PLAIN, difference=0.01), "dgc", "with nothing lost, parameters differ by 0.01 from plain "),
        (result(PLAIN, PLAIN, agree=False), "dgc", "ranks have different parameters after the last step"),
    ],
    ids=["losses", "exact losses", "exact parameters", "ranks"],
)
def test_broken_promises_are_failures(rank: RankResult, lossy: str, failure: str) -> None:
    (found,) = compare([result(PLAIN, PLAIN), rank] if "losses" not in failure else [rank], lossy).failures
    assert found.startswith(failure)
