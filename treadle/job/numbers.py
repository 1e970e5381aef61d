"""The numbers of a training under plans against those of plain DistributedDataParallel.

Plans that lose nothing change sums in their last bits only. Where plans lose a part of the gradients, losses are others
by intent. Then the steps also run with everything in place but that loss: those numbers must be the plain ones, which
shows that the exchange itself is right, and the ranks must end with the same parameters, bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from treadle.job.train import RankResult
from treadle.planner.documents.scalars import many
from treadle.report.page import Card, Table

# Relative. Sums in another order differ in the last bits of float32; over a few steps they stay far below this.
TOLERANCE = 1e-4
PEER = "plain DistributedDataParallel"
EXACT = "with nothing lost"


class NumbersCompared(NamedTuple):
    """Cards, promises that were broken, and the losses step by step."""

    cards: tuple[Card, ...]
    failures: tuple[str, ...]
    table: Table


def compare(results: Sequence[RankResult], lossy: str) -> NumbersCompared:
    """The numbers of all ranks. lossy: what loses a part of the gradients, nothing where no plan does."""
    plain, ours, exact = (
        mean_losses(runs)
        for runs in zip(*((r.plain.losses, r.planned.losses, r.exact_losses) for r in results), strict=True)
    )
    difference = max(abs(a - b) for a, b in zip(plain, exact, strict=True))
    drift = max(rank.parameter_difference for rank in results)
    same = difference <= TOLERANCE * max(map(abs, plain))
    close = drift <= TOLERANCE * max(rank.parameter_scale for rank in results)
    agree = all(rank.parameters_agree for rank in results)
    steps, how = many(len(plain), "step"), f"{EXACT}, " if lossy else ""
    note = f"{how}over {steps}: largest difference of a mean loss {difference:.2g}, of a parameter {drift:.2g}"
    cards = [Card("same numbers", "yes, measured" if same and close else "no", same and close, note)]
    failures = []
    if not same:
        failures.append(f"{how}losses differ by {difference:.3g} from {PEER}")
    if not close:
        failures.append(f"{how}parameters differ by {drift:.3g} from {PEER} after the last step")
    if lossy:
        ranks = "the same parameters on all ranks" if agree else "other parameters on some ranks"
        text = f"after {steps}, {PEER} {plain[-1]:.6g}; {lossy}; {ranks}"
        cards.append(Card("loss under the plans", f"{ours[-1]:.6g}", None if agree else False, text))
    if lossy and not agree:
        failures.append("ranks have different parameters after the last step")
    return NumbersCompared(tuple(cards), tuple(failures), _table(plain, ours, exact if lossy else None))


def mean_losses(ranks: Sequence[Sequence[float]]) -> list[float]:
    """Mean loss over the ranks, step by step."""
    return [sum(losses) / len(losses) for losses in zip(*ranks, strict=True)]


def _table(plain: Sequence[float], ours: Sequence[float], exact: Sequence[float] | None) -> Table:
    head = ["step", "loss, plain", "loss, planned", "difference"]
    rows = [
        [str(step + 1), f"{a:.6f}", f"{b:.6f}", f"{b - a:+.1e}" if b != a else "0"]
        for step, (a, b) in enumerate(zip(plain, ours, strict=True))
    ]
    if exact is not None:
        head.append(f"loss, {EXACT}")
        rows = [[*row, f"{loss:.6f}"] for row, loss in zip(rows, exact, strict=True)]
    return Table(tuple(head), tuple(map(tuple, rows)), "Mean loss over the ranks.")
