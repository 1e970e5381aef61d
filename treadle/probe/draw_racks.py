"""Where racks and their uplinks go in the picture of a profile; geometry only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from treadle.planner.documents.hardware import Uplink

RACK_STEP = 0.7


@dataclass(frozen=True)
class Racks:
    """Nodes in an order in which those of every rack are neighbours; `place` is by node, of those that are drawn."""

    uplinks: tuple[Uplink, ...]
    place: dict[int, int]

    @staticmethod
    def of(uplinks: Sequence[Uplink], nodes: int, drawn: int) -> Racks:
        """The first `drawn` nodes of `nodes`, rack by rack."""
        outwards = sorted(uplinks, key=lambda uplink: (-len(uplink.nodes), min(uplink.nodes)))

        def key(node: int) -> tuple[int, ...]:
            return (*(min(each.nodes) if node in each.nodes else nodes for each in outwards), node)

        behind = {node for uplink in uplinks for node in uplink.nodes if node < nodes}
        first = range(min(nodes, drawn + len(behind)))  # of the others only these can be drawn
        order = sorted(behind.union(first), key=key)[:drawn]
        return Racks(tuple(uplinks), {node: at for at, node in enumerate(order)})

    @property
    def levels(self) -> int:
        """How many uplinks lie one in another at most."""
        return 1 + max(map(self._level, self.uplinks), default=-1)

    def _level(self, uplink: Uplink) -> int:
        inner = [each for each in self.uplinks if set(each.nodes) < set(uplink.nodes)]
        return 1 + max(map(self._level, inner), default=-1)

    def holds(self, node: int) -> bool:
        """Whether a node is behind an uplink."""
        return any(node in uplink.nodes for uplink in self.uplinks)

    def level_of(self, node: int) -> int:
        """The level of the innermost uplink of a node that has one."""
        return min(self._level(uplink) for uplink in self.uplinks if node in uplink.nodes)

    def drawn(self) -> Iterator[tuple[Uplink, list[int], int, int | None]]:
        """Uplinks of drawn nodes: (uplink, places of its nodes, level, level of the uplink around it if any)."""
        for uplink in self.uplinks:
            places = sorted(self.place[node] for node in uplink.nodes if node in self.place)
            around = [self._level(each) for each in self.uplinks if set(uplink.nodes) < set(each.nodes)]
            if places:
                yield uplink, places, self._level(uplink), min(around, default=None)
