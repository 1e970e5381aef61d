"""What ranks hold in the end: the sum after every option, something else after steps that are none."""

from __future__ import annotations

import pytest

from treadle.planner.passes.compression.check_sums import wrong_sum
from treadle.planner.passes.compression.options import options, summed


@pytest.mark.parametrize("grid", [(1, 1), (1, 2), (2, 1), (2, 2), (2, 4), (4, 2)])
def test_every_option_gives_every_rank_the_sum(grid: tuple[int, int]) -> None:
    every = [*options(("device",), False), *options(("device",), True), *summed(("device",), False)]
    every += [*summed(("device",), True), ("planned@flat",)]
    assert len(every) == 174 + 3
    assert [steps for steps in every if wrong_sum(steps, *grid)] == []


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ((), "rank 0 of 2x2 holds a part with the gradients of 1 of 4 ranks"),
        (("reduce-scatter@flat",), "rank 0 of 2x2 holds nothing of a part"),
        (("reduce@flat",), "rank 1 of 2x2 holds nothing of a part"),
        (("allreduce@intra",), "rank 0 of 2x2 holds a part with the gradients of 2 of 4 ranks"),
        (("allreduce@flat", "allreduce@inter"), "rank 0 of 2x2 holds a part with the gradient of a rank 2 times"),
        (("compress@device", "allgather@flat"), "rank 0 of 2x2 holds a part in 4 pieces"),
        (("reduce@intra", "allreduce@inter"), "rank 1 of 2x2 holds nothing of a part"),
        (("reduce-scatter@intra", "allgather@intra"), "holds a part with the gradients of 2 of 4 ranks"),
    ],
)
def test_a_row_without_the_sum_is_described(steps: tuple[str, ...], words: str) -> None:
    assert words in (wrong_sum(steps, 2, 2) or "")
