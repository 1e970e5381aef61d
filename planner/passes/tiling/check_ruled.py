"""Whether a plan on a graph of rules may run, counted again: tilings, rules, moves, work, memory, totals."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from treadle.planner.documents.scalars import many
from treadle.planner.passes.tiling.check_moves import CheapestMoves
from treadle.planner.passes.tiling.check_published import Finding, edge_findings
from treadle.planner.passes.tiling.check_rules import RuleCheck
from treadle.planner.passes.tiling.decisions import NodeTiling, TiledEdge, TilingDecisions
from treadle.planner.passes.tiling.problem import ArrayNode, ArrayTiling, TiledArray, TilingProblem


def placement_findings(decisions: TilingDecisions) -> Iterator[Finding]:
    """Tilings that arrays may not have, and operators that no rule lets run so."""
    problem, moves, rules = decisions.problem, CheapestMoves(decisions.problem), RuleCheck(decisions.problem)
    tiling = {array.id: chosen for array, chosen in zip(problem.arrays, decisions.tilings, strict=True)}
    for place, array in enumerate(problem.arrays):
        for found, expected in _wrong_tiling(array, tiling, moves, array.id in rules.partial):
            yield f"$.decisions.tilings[{place}]", found, f"{expected} for {array.id}"
    for place, (node, tiled) in enumerate(zip(problem.nodes, decisions.nodes, strict=True)):
        path = f"$.decisions.nodes[{place}]"
        if tiled.node != node.id:
            yield f"{path}.node", tiled.node, f"{node.id}, as in the problem"
        elif (len(tiled.reads), len(tiled.makes)) != (len(node.inputs), len(node.outputs)):
            expected = f"{len(node.inputs)} and {len(node.outputs)}"
            yield path, f"{len(tiled.reads)} reads and {len(tiled.makes)} makes", f"{expected} for {node.id}"
        else:
            yield from ((path, found, expected) for found, expected in _wrong_node(node, tiled, moves, rules))


def _wrong_tiling(
    array: TiledArray, tiling: dict[str, ArrayTiling], moves: CheapestMoves, partial: bool
) -> Iterator[tuple[str, str]]:
    chosen = tiling[array.id]
    words = ", ".join(chosen)
    if len(chosen) != len(moves.mesh):
        yield many(len(chosen), "placement"), f"{len(moves.mesh)}, one for each axis of the mesh"
    elif array.fixed is not None and chosen != array.fixed:
        yield words, f"the fixed {', '.join(array.fixed)}"
    elif any(word[0] not in "SRP" for word in chosen):
        yield words, "placements S, R or P"
    elif not moves.divides(chosen, array.shape):
        yield words, f"cuts that divide its shape {array.shape}"
    elif "P" in chosen and not partial:
        yield words, "no partial result"
    elif array.like is not None and chosen != tiling[array.like]:
        yield words, f"{', '.join(tiling[array.like])} as {array.like} has"


def _wrong_node(
    node: ArrayNode, tiled: NodeTiling, moves: CheapestMoves, rules: RuleCheck
) -> Iterator[tuple[str, str]]:
    for name, chosen in zip((*node.inputs, *node.outputs), (*tiled.reads, *tiled.makes), strict=True):
        if len(chosen) != len(moves.mesh):
            yield f"{many(len(chosen), 'placement')} of {name}", f"{len(moves.mesh)}, one for each axis of the mesh"
            return
        if any(word[0] not in "SRP" for word in chosen) or not moves.divides(chosen, rules.shapes[name]):
            yield ", ".join(chosen), f"cuts that divide {name} of shape {rules.shapes[name]}"
            return
    for place, axis in enumerate(moves.mesh):
        reads, makes = (tuple(each[place] for each in tilings) for tilings in (tiled.reads, tiled.makes))
        if (reads, makes) not in rules.options(node, place):
            yield f"{', '.join(reads)} -> {', '.join(makes)}", f"a rule of {node.id} on axis {axis.name}"


def total_findings(decisions: TilingDecisions) -> Iterator[Finding]:
    """CheapestMoves, and what all of it costs, moves and holds."""
    counted = RuledCounts(decisions)
    yield from counted.impossible
    if counted.impossible:
        return
    yield from edge_findings(decisions, counted.edges)
    problem, moved = decisions.problem, sum(edge.bytes for edge in counted.edges)
    cost = counted.work + sum(edge.cost for edge in counted.edges)
    right = {
        "cost": cost,
        "moved_bytes": moved,
        "memory_bytes": max(counted.memory(), default=0),
        "dup_bytes": 0,
        "time_ns": cost if problem.model == "time" else moved_ns(problem, moved),
    }
    for name, value in right.items():
        if (seen := getattr(decisions, name)) != value:
            yield f"$.decisions.{name}", seen, str(value)
    if problem.memory_bytes is not None and right["memory_bytes"] > problem.memory_bytes:
        limit = f"at most {problem.memory_bytes}, the limit of the problem"
        yield "$.decisions.memory_bytes", right["memory_bytes"], limit


def moved_ns(problem: TilingProblem, moved: int) -> int:
    """Bytes as a time, over the slowest transfer of the mesh."""
    rate = min((cost.rate for axis in problem.mesh for cost in axis.costs), default=10**9)
    return -(-moved * 10**9 // (prod(axis.size for axis in problem.mesh) * rate))


class RuledCounts:
    """CheapestMoves and work as tilings and operators say."""

    def __init__(self, decisions: TilingDecisions) -> None:
        self.decisions, self.problem = decisions, decisions.problem
        self.moves = CheapestMoves(self.problem)
        self.arrays = {array.id: array for array in self.problem.arrays}
        self.tiling = {array.id: chosen for array, chosen in zip(self.problem.arrays, decisions.tilings, strict=True)}
        self.edges: list[TiledEdge] = []
        self.impossible: list[Finding] = []
        self.work = 0
        for place, (node, tiled) in enumerate(zip(self.problem.nodes, decisions.nodes, strict=True)):
            self._add(place, node, tiled)

    def _add(self, place: int, node: ArrayNode, tiled: NodeTiling) -> None:
        for number, (name, reads) in enumerate(zip(node.inputs, tiled.reads, strict=True)):
            self._move(place, node, name, number, self.tiling[name], reads)
        for name, makes in zip(node.outputs, tiled.makes, strict=True):
            self._move(place, node, name, None, makes, self.tiling[name])
        if self.problem.model == "time":
            self.work += self.work_ns(self.problem, node, tiled.reads, tiled.makes)

    @staticmethod
    def work_ns(
        problem: TilingProblem, node: ArrayNode, reads: tuple[ArrayTiling, ...], makes: tuple[ArrayTiling, ...]
    ) -> int:
        """What the operator takes on each of the workers that share it."""
        words = zip(*reads, *makes, strict=True)
        shares = [
            axis.size
            for axis, here in zip(problem.mesh, words, strict=True)
            if any(word.startswith("S") for word in here)
        ]
        return problem.call_ns - node.work_ns // -prod(shares)

    def _move(
        self, place: int, node: ArrayNode, name: str, reading: int | None, before: ArrayTiling, after: ArrayTiling
    ) -> None:
        if before == after:
            return
        array = self.arrays[name]
        route = self.moves.route(array, before, after)
        if route is None:
            what = f"{', '.join(before)} of {name} before {', '.join(after)}"
            self.impossible.append((f"$.decisions.nodes[{place}]", what, "tilings that collectives lead to"))
            return
        self.edges.append(
            TiledEdge(
                array=name,
                node=node.id,
                reading=reading,
                steps=route.steps,
                bytes=route.elements * array.item_bytes,
                cost=route.cost,
            )
        )

    def _local(self, name: str, tiling: ArrayTiling, item_bytes: int) -> int:
        """Bytes of an array at one worker."""
        return prod(self.arrays[name].shape) * item_bytes // self.moves.pieces(tiling)

    def memory(self) -> Iterator[int]:
        """By operator, what every worker holds: arrays from where they are made to where they, or what lies in their
        memory, are last read; copies in other tilings while the operator runs; what is kept all the time."""
        problem, end = self.problem, len(self.problem.nodes)
        dies = self._last_readers(end)
        changes = [0] * (end + 2)
        changes[0] = sum(
            self._local(name, self.tiling[name], each.kept_item_bytes) for name, each in self.arrays.items()
        )
        for place, (node, tiled) in enumerate(zip(problem.nodes, self.decisions.nodes, strict=True)):
            for name, makes in zip(node.outputs, tiled.makes, strict=True):
                own = makes == self.tiling[name]
                size = self._local(name, self.tiling[name], self.arrays[name].item_bytes)
                if self.arrays[name].shares is None or not own:
                    changes[place] += size
                    changes[dies[name] + 1] -= size
                if not own:
                    self._while(changes, place, name, makes)
            for name, reads in {*zip(node.inputs, tiled.reads, strict=True)}:
                if reads != self.tiling[name]:
                    self._while(changes, place, name, reads)
        level = 0
        for change in changes[:end]:
            level += change
            yield level

    def _while(self, changes: list[int], place: int, name: str, tiling: ArrayTiling) -> None:
        """A copy that is there while one operator runs."""
        size = self._local(name, tiling, self.arrays[name].item_bytes)
        changes[place] += size
        changes[place + 1] -= size

    def _last_readers(self, end: int) -> dict[str, int]:
        dies: dict[str, int] = {}
        for place, node in enumerate(self.problem.nodes):
            for name in (*node.inputs, *node.outputs):
                dies[name] = place
        dies.update(dict.fromkeys(self.problem.outputs, end))
        for node in reversed(self.problem.nodes):
            for name in reversed(node.outputs):
                if (base := self.arrays[name].shares) is not None:
                    dies[base] = max(dies[base], dies[name])
        return dies
