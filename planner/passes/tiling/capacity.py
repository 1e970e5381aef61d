"""Limits on a choice of tilings: memory at a moment of the program, or what second copies take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from treadle.planner.passes.tiling.graph import Costs


@dataclass(frozen=True)
class Capacity:
    """The sum over `weights`, pairs of a group and the bytes of each of its labels, is at most `limit`."""

    weights: tuple[tuple[int, Costs], ...]
    limit: int

    def used(self, choice: Sequence[int]) -> int:
        """The sum for a label of each group."""
        return sum(int(weights[choice[group]]) for group, weights in self.weights)


def fits(capacities: Iterable[Capacity], choice: Sequence[int]) -> bool:
    """Whether a choice stays within all limits."""
    return all(capacity.used(choice) <= capacity.limit for capacity in capacities)
