"""What the nodes of a published problem read and make under given tilings, and the edges along which arrays move."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from treadle.planner.passes.tiling.decisions import NodeTiling, TiledEdge, Transfer, TransferStep
from treadle.planner.passes.tiling.lifetimes import moments
from treadle.planner.passes.tiling.problem import ArrayNode, ArrayTiling, TilingProblem
from treadle.planner.passes.tiling.published import local_bytes, reading, second_bytes
from treadle.planner.passes.tiling.published_costs import PARTIAL, WHOLE, FoldCost, Moved, PublishedCosts, aligned
from treadle.planner.passes.tiling.tile_maps import COPIES, VIEWS, TileMaps, first_map


class PublishedMoves:
    """The figures of a published problem whose arrays have `tilings`, in their order."""

    def __init__(self, problem: TilingProblem, tilings: Sequence[ArrayTiling]) -> None:
        self.problem, self.maps = problem, TileMaps(problem)
        self.costs = PublishedCosts(self.maps)
        self.label = {array.id: tiling[0] for array, tiling in zip(problem.arrays, tilings, strict=True)}

    def nodes(self) -> tuple[NodeTiling, ...]:
        """How each node reads its inputs and leaves its result."""
        return tuple(
            NodeTiling(
                node=node.id,
                reads=tuple((self._reads(node, place),) for place in range(len(node.inputs))),
                makes=((self._makes(node),),),
            )
            for node in self.problem.nodes
        )

    def edges(self) -> tuple[TiledEdge, ...]:
        """What moves: for each node its inputs in order, its result, and the second copy of that."""
        return tuple(edge for node in self.problem.nodes for edge in self._edges(node))

    def memory_bytes(self) -> int:
        """The most that a worker holds at any node."""
        local = {
            name: local_bytes(self.maps, name, label)
            for name, label in self.label.items()
            if not self.maps.is_view(name)
        }
        return max((sum(local[name] for name in alive) for alive in moments(self.problem)), default=0)

    def dup_bytes(self) -> int:
        """What second copies take, all workers together."""
        return sum(second_bytes(self.maps, name, label) for name, label in self.label.items())

    def _reads(self, node: ArrayNode, place: int) -> str:
        read, u = node.inputs[place], self.label[node.outputs[0]]
        match node.operator:
            case "map":
                return self._map_reads(read, node.outputs[0])
            case "fold" | "scan":
                return self._fold(node).reads
            case "join_update":
                return reading(node, place)
        if place:  # the mask of a filter
            return {"S0": "S0", "B": "B"}.get(first_map(u), WHOLE)
        return first_map(self.label[read])

    def _map_reads(self, read: str, result: str) -> str:
        u, shape, whole = first_map(self.label[result]), self.maps.shape(read), self.maps.shape(result)
        if shape == whole:
            return u
        if u == "B":
            return "B" if [aligned(axis, whole, shape) for axis in (0, 1)] == [0, 1] else WHOLE
        axis = aligned(int(u[1:]), whole, shape)
        return WHOLE if axis is None else f"S{axis}"

    def _fold(self, node: ArrayNode) -> FoldCost:
        return self.costs.fold(node, self.label[node.inputs[0]], self.label[node.outputs[0]], self.problem.model)

    def _makes(self, node: ArrayNode) -> str:
        match node.operator:
            case "fold" | "scan":
                return self._fold(node).makes
            case "join_update":
                return PARTIAL if node.update == "all" else "S0"
        return first_map(self.label[node.outputs[0]])

    def _edges(self, node: ArrayNode) -> Iterator[TiledEdge]:
        name = node.outputs[0]
        u = self.label[name]
        if node.operator in ("map", "filter", "join_update"):
            for place, read in enumerate(node.inputs):
                if node.operator == "filter" and not place:
                    continue
                reads = self._reads(node, place)
                transfer: Transfer = "broadcast" if reads == WHOLE else "retile"
                yield from self._edge(node, read, place, transfer, reads, self._read(node, place))
        if node.operator in ("fold", "scan"):
            yield from self._edge(node, name, None, "reduce", first_map(u), self._fold(node).moved)
        if node.operator == "join_update":
            yield from self._edge(node, name, None, "update", first_map(u), self.costs.update(node, u))
        if u in COPIES and node.operator not in VIEWS:
            yield from self._edge(node, name, None, "duplicate", u, self.costs.second_copy(name, u))

    def _read(self, node: ArrayNode, place: int) -> Moved:
        read, name = node.inputs[place], node.outputs[0]
        t, u = self.label[read], self.label[name]
        match node.operator:
            case "map":
                return self.costs.map_read(read, name, t, u)
            case "filter":
                return self.costs.mask_read(read, name, t, u)
        return self.costs.join_read(node, place, t)

    def _edge(
        self, node: ArrayNode, array: str, place: int | None, transfer: Transfer, tiling: str, moved: Moved
    ) -> Iterator[TiledEdge]:
        cost = moved.seed if self.problem.model == "seed" else moved.exact
        if cost or moved.exact:
            yield TiledEdge(
                array=array,
                node=node.id,
                reading=place,
                steps=(TransferStep(transfer=transfer, tiling=(tiling,)),),
                bytes=moved.exact * self.maps.arrays[array].item_bytes,
                cost=cost,
            )
