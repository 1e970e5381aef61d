"""Traffic and volume that the ranks of a schedule counted, compared with treadle.planner.passes.fusion.counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from treadle.planner.passes.fusion.counts import counts
from treadle.planner.passes.fusion.program import Bindings, Program
from treadle.runtime.fusion.session import Counted


@dataclass(frozen=True)
class Counter:
    """Elements of one run: planned for a rank of each group, on average where ranks differ, and counted by the ranks of
    all groups together. Both are equal for extents that the ranks divide."""

    what: str
    planned: Fraction
    counted: tuple[int, ...]
    """By rank of a group."""

    @property
    def mean(self) -> Fraction:
        return Fraction(sum(self.counted), len(self.counted))

    @property
    def equal(self) -> bool:
        return self.mean == self.planned


def counters(program: Program, bindings: Bindings, counted: Sequence[Counted], runs: int = 1) -> list[Counter]:
    """Traffic, and volume in each group and between groups; `counted` by rank, in `runs` runs."""
    planned = counts(program)
    ranks, groups = bindings.ranks, bindings.groups

    def row(what: str, plan: Fraction, amounts: Sequence[int]) -> Counter:
        """`amounts` are those of ranks 0 to n-1 of the first group, then of the next one."""
        return Counter(what, plan, tuple(sum(amounts[rank::ranks]) // runs for rank in range(ranks)))

    traffic = planned.traffic.value(bindings)
    rows = [row("traffic", traffic, [each.loaded + each.stored for each in counted])]
    for group in range(groups):
        mine = [each.sent for each in counted[group * ranks : (group + 1) * ranks]]
        what = "volume" if groups == 1 else f"volume in group {group}"
        rows.append(row(what, planned.volume_in(group).value(bindings), mine))
    if groups > 1:
        between = planned.between.value(bindings)
        rows.append(row("volume between groups", between, [each.sent_on for each in counted]))
    return rows
