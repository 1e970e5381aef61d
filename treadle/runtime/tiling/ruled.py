"""The phases of operators by rules: every worker computes on its own tiles, and arrays change their tilings in steps,
each a collective in the groups of one axis of the mesh."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.decisions import NodeTiling, TransferStep
from treadle.planner.passes.tiling.problem import ArrayNode, ArrayTiling
from treadle.runtime.tiling.phases import (
    TiledProgram,
    each_reads,
    edges_of,
    filter_phase,
    slice_phase,
    swap_phase,
)
from treadle.runtime.tiling.tasks import MovedEdge, Read, TileKey, TilePhase
from treadle.runtime.tiling.tiles import Region, TileMap, chunk, group


class RuledProgram(TiledProgram):
    """The phases of one node after another."""

    def phases(self, node: ArrayNode, tiled: NodeTiling) -> Iterator[TilePhase]:
        """The phases of `node`, to be run in this order. Raises InputError for what does not run on tiles."""
        if node.operator == "rule" or len(node.outputs) != 1:
            raise InputError(f"{node.id}: operator {node.operator} of {node.function} does not run on tiles")
        keys = []
        for place, (name, reads) in enumerate(zip(node.inputs, tiled.reads, strict=True)):
            edge, key = MovedEdge(name, node.id, place), TileKey(name)
            last = TileKey(node.id, f"read {place}") if reads != self.tilings[name] else key
            yield from self._moved(node, edge, key, self.tilings[name], reads, last)
            keys.append(last)
        (name,), (makes,) = node.outputs, tiled.makes
        made = TileKey(name) if makes == self.tilings[name] else TileKey(node.id, "made")
        yield self._computed(node, keys, made, self.tiles(name, makes))
        yield from self._moved(node, MovedEdge(name, node.id, None), made, makes, self.tilings[name], TileKey(name))

    def _computed(self, node: ArrayNode, keys: list[TileKey], made: TileKey, target: TileMap) -> TilePhase:
        """Every worker applies the node to its tiles."""
        if self.of_nothing(node):
            return self.phase_of_nothing(node, made, target)
        if node.operator == "slice":
            return slice_phase(node, keys[0], made, self.maps[keys[0]])
        if node.operator == "swapaxis":
            return swap_phase(node, keys[0], made, self.maps[keys[0]])
        if node.operator == "filter":
            return filter_phase(node, keys[0], (keys[1],), made, self.maps[keys[0]])
        reads = tuple(
            () if region is None else tuple(Read((key,), _held(self.maps[key][worker])) for key in keys)
            for worker, region in enumerate(target)
        )
        array = self.arrays[node.outputs[0]]
        return TilePhase(made, node.operator, target, reads, edges_of(node), node, (array,))

    def _moved(
        self, node: ArrayNode, edge: MovedEdge, key: TileKey, have: ArrayTiling, want: ArrayTiling, last: TileKey
    ) -> Iterator[TilePhase]:
        """The steps of an edge; the last one makes the key `last`."""
        if have == want:
            return
        steps = self._steps(edge)
        if not steps or steps[-1].tiling != want:
            raise InputError(f"{node.id}: no steps of the plan bring {edge.array} from {have} to {want}")
        for number, step in enumerate(steps):
            made = last if number == len(steps) - 1 else TileKey(node.id, f"{last.part} {edge.reading} step {number}")
            yield from self._step(node, edge, key, step, have, made)
            key, have = made, step.tiling

    def _steps(self, edge: MovedEdge) -> tuple[TransferStep, ...]:
        return next((each.steps for each in self.decisions.edges if (each.array, each.node, each.reading) == edge), ())

    def _step(
        self, node: ArrayNode, edge: MovedEdge, key: TileKey, step: TransferStep, have: ArrayTiling, made: TileKey
    ) -> Iterator[TilePhase]:
        """One collective: every worker reads what it shall have, from the group of its own along the axis only."""
        groups = tuple(group(worker, step.axis, self.mesh) for worker in range(prod(self.mesh)))
        target, merged = self.tiles(edge.array, step.tiling), have[step.axis] == "P"
        gathered = self.decisions.problem.mesh[step.axis].alltoall == "gathered"
        if step.transfer == "allreduce":
            parts = tuple(
                None if region is None else _part(region, len(members), members.index(worker))
                for worker, (region, members) in enumerate(zip(target, groups, strict=True))
            )
            shares = TileKey(node.id, f"{made.part} {edge.reading} shares")
            yield TilePhase(
                shares, "gather", parts, each_reads(parts, (key,), merged=True, among=groups), (edge,), node
            )
            key, merged = shares, False
        elif step.transfer == "alltoall" and gathered:
            full = TileKey(node.id, f"{made.part} {edge.reading} gathered")
            tiling = (*have[: step.axis], "R", *have[step.axis + 1 :])
            tiles = self.tiles(edge.array, tiling)
            yield TilePhase(full, "gather", tiles, each_reads(tiles, (key,), among=groups), (edge,), node)
            key = full
        reads = each_reads(target, (key,), merged=merged, among=groups)
        yield TilePhase(made, "gather", target, reads, (edge,), node)


def _held(region: Region | None) -> Region:
    assert region is not None, "a worker computes on what it holds"
    return region


def _part(region: Region, parts: int, number: int) -> Region | None:
    """The share of one worker of the sums of an allreduce: a chunk along the longest axis."""
    if not region:
        return region if number == 0 else None
    axis = max(range(len(region)), key=lambda each: region[each][1] - region[each][0])
    low, high = region[axis]
    first, end = chunk(high - low, parts, number)
    share = (*region[:axis], (low + first, low + end), *region[axis + 1 :])
    return share if first < end else None
