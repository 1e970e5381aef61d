"""The automaton accepts the tree of options and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from treadle.planner.passes.compression.check_steps import StepsSoFar, following, misstep
from treadle.planner.passes.compression.options import Option, options, summed

PLACES = ("device", "host")


def rows(now: StepsSoFar, row: Option, *, summable: bool) -> Iterator[Option]:
    """Every row of steps that the automaton accepts after `row`."""
    if now.at == "end" and not now.packed:
        yield row
    for step, then in following(now, summable=summable, planned=False).items():
        for place in PLACES if "@" not in step else ("",):
            yield from rows(then, (*row, f"{step}@{place}" if place else step), summable=summable)


@pytest.mark.parametrize("summable", [False, True])
def test_it_accepts_the_4341_options_and_the_summed_ones(summable: bool) -> None:
    accepted = list(rows(StepsSoFar(), (), summable=summable))
    tree = options(PLACES, False) + options(PLACES, True)
    assert len(tree) == 4341
    more = summed(PLACES, False) + summed(PLACES, True) if summable else ()
    assert len(accepted) == len(tree) + len(more)
    assert set(accepted) == {*tree, *more}


def test_a_planned_allreduce_is_a_row_of_its_own() -> None:
    assert misstep(("planned@flat",), summable=False, planned=True) is None
    place, found, expected = misstep(("planned@flat", "decompress@host"), summable=False, planned=True) or (0, "", "")
    assert (place, found, expected) == (1, "decompress@host", "no further step")
