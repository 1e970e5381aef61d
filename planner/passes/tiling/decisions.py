"""What the tiling pass decides: a tiling for each array, and for each operator in which tilings it reads its inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from treadle.planner.documents.scalars import Count, Decisions, Name, Record
from treadle.planner.passes.tiling.problem import ArrayTiling, TilingProblem

TilingMethod = Literal["greedy", "sweep", "exact", "blocks", "row", "column", "worst"]
"""Row, column and worst are for comparison."""
AskedMethod = Literal["auto", "greedy", "sweep", "exact", "row", "column", "worst"]
"""What a user may ask for; auto takes exact where it is proved within the limit."""
Transfer = Literal[
    "retile",
    "broadcast",
    "reduce",
    "update",
    "duplicate",
    "slice",
    "allgather",
    "reduce-scatter",
    "allreduce",
    "alltoall",
]
"""The first five on the graph of the paper, the others along one axis of the mesh."""


class TransferStep(Record, frozen=True, kw_only=True):
    """After this step the array has `tiling`. `axis` is that of the mesh."""

    transfer: Transfer
    axis: Count = 0
    tiling: ArrayTiling


class TiledEdge(Record, frozen=True, kw_only=True):
    """An array that is moved between `node` and its tiling; arrays that stay have no edge."""

    array: Name
    node: Name
    reading: Count | None = None
    """Which input of the node it becomes; None for what the node has made."""
    steps: tuple[TransferStep, ...]
    bytes: Count
    """Between workers, all of them together."""
    cost: Count
    """Elements, or ns for the model `time`."""


class NodeTiling(Record, frozen=True, kw_only=True):
    """`reads[i]` is the tiling in which the node reads its i-th input, `makes[j]` that in which it leaves its j-th
    result, before either is moved to the tiling of the array."""

    node: Name
    reads: tuple[ArrayTiling, ...]
    makes: tuple[ArrayTiling, ...]


class GreedyStep(Record, frozen=True, kw_only=True):
    """The greedy method decided `group`: what each of its tilings would cost (None: impossible), and its choice."""

    group: Name
    costs: tuple[Count | None, ...]
    choice: Count


class TilingDecisions(Decisions, frozen=True, kw_only=True, tag_field="pass", tag="tiling"):
    """`tilings` in the order of the problem's arrays, `nodes` in that of its nodes."""

    problem: TilingProblem
    method: TilingMethod
    tilings: tuple[ArrayTiling, ...]
    nodes: tuple[NodeTiling, ...]
    edges: tuple[TiledEdge, ...]
    steps: tuple[GreedyStep, ...] = ()
    """In the order in which the greedy method decided, where it made the plan."""
    cost: Count
    """Elements, or ns for the model `time`."""
    moved_bytes: Count
    memory_bytes: Count
    """What the fullest worker holds at its fullest moment."""
    dup_bytes: Count = 0
    time_ns: Count

    def problems(self) -> Iterator[tuple[str, str, str]]:
        for path, found, expected in self.problem.problems():
            yield path.replace("$", "$.decisions.problem", 1), found, expected
        for name, count, wanted in (
            ("tilings", len(self.tilings), len(self.problem.arrays)),
            ("nodes", len(self.nodes), len(self.problem.nodes)),
        ):
            if count != wanted:
                yield f"$.decisions.{name}", str(count), str(wanted)
        arrays = {array.id for array in self.problem.arrays}
        nodes = {node.id for node in self.problem.nodes}
        for place, edge in enumerate(self.edges):
            if edge.array not in arrays or edge.node not in nodes:
                yield (
                    f"$.decisions.edges[{place}]",
                    f"{edge.array} at {edge.node}",
                    "an array and a node of the problem",
                )
