"""A problem of tiling: a graph of operators on arrays, a mesh of workers, and what moving bytes along its axes costs.

A placement is what one axis of the mesh does with an array: `S0` cuts axis 0 of the array, `R` has it whole on each
worker, `P` leaves a partial result on each. A tiling has one placement for each axis of the mesh; where several axes of
the mesh cut the same axis of the array, the first of them cuts first. On a mesh of one axis there are those of the
paper too: `B` cuts the first two axes, `D0` and `D1` keep two copies, one for each cut; the number says
which of them is made first.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Annotated, Any, Literal

from msgspec import Meta

from treadle.planner.documents.scalars import Count, Document, Name, Positive, Record

VERSION = 1
MAX_NODES = 100_000
MOST_WORKERS = 1 << 16
ArrayPlacement = Annotated[str, Meta(pattern=r"^(S[0-9]|R|P|B|D[01])$")]
ArrayTiling = tuple[ArrayPlacement, ...]
ArrayOperator = Literal[
    "newarray", "value", "map", "filter", "fold", "scan", "join_update", "slice", "swapaxis", "rule"
]
CostModel = Literal["seed", "exact", "time"]
"""Elements by the estimates of the paper; elements that workers really move; ns of collectives and of work."""
AxisTransfer = Literal["allgather", "reduce-scatter", "allreduce", "alltoall"]


class TransferCost(Record, frozen=True, kw_only=True):
    """A collective along an axis of the mesh, of `bytes` in all of its group (what one worker has afterwards of an
    allgather, before a reduce-scatter), takes alpha_ns + bytes / rate."""

    transfer: AxisTransfer
    alpha_ns: Count = 0
    rate: Positive
    """Bytes per second."""


class MeshAxis(Record, frozen=True, kw_only=True):
    """Workers along one axis of the mesh. `costs` has each transfer once, for the model `time` only."""

    name: Name
    size: Positive
    costs: tuple[TransferCost, ...] = ()
    alltoall: Literal["direct", "gathered"] = "direct"
    """Gathered: the runtime gathers the whole array and keeps a part, as DTensor does on gloo."""


class TilingRule(Record, frozen=True, kw_only=True):
    """What an operator may do along one axis of the mesh: `inputs[i]` is the placement in which it reads its i-th
    input, `outputs[j]` the one in which it leaves its j-th result."""

    inputs: tuple[ArrayPlacement, ...]
    outputs: tuple[ArrayPlacement, ...]


class TiledArray(Record, frozen=True, kw_only=True):
    """An array or tensor. Its memory counts from the node that makes it to its last reader, or to the end for outputs
    of the problem; `kept_item_bytes` count for the whole step (weights, gradients and states of an optimizer)."""

    id: Name
    shape: tuple[Count, ...]
    dtype: Name
    item_bytes: Positive
    kept_item_bytes: Count = 0
    fixed: ArrayTiling | None = None
    """Its tiling, where it exists already or the user has set it."""
    like: Name | None = None
    """An earlier array whose tiling it must have, as a gradient has that of its weight."""
    shares: Name | None = None
    """An earlier array in whose memory it lies."""
    masked: bool = False
    """A result of filter: `shape` is the most that it may have."""


class ArrayNode(Record, frozen=True, kw_only=True):
    """One call of an operator. `axes` are those that fold and scan run along, one of each input that join_update cuts
    (-1: the whole array joins), and both of swapaxis. `rules` are numbers in the problem's rules, for `rule` only."""

    id: Name
    operator: ArrayOperator
    function: Name
    """What the operator applies: `add`, `sum`, `matmul`, `module:function` of the user, `aten.mm.default`."""
    inputs: tuple[Name, ...] = ()
    outputs: tuple[Name, ...]
    axes: tuple[int, ...] = ()
    params: dict[str, Any] = {}
    """Plain values that the function needs: numbers, text, lists."""
    update: Literal["each", "all"] = "each"
    """Whether a task of join_update updates its part of axis 0 of the result, or all of the result."""
    observed_update: Count | None = None
    """Elements that an earlier run of a join_update updated."""
    rules: tuple[Count, ...] = ()
    work_ns: Count = 0
    """The time of the whole call on one worker."""
    block: Name | None = None
    """The same word for nodes of repeated blocks that stand at the same place of them, as `layer/17`."""


class TilingProblem(Document, frozen=True, kw_only=True, tag_field="kind", tag="tiling-problem"):
    """Nodes are in the order in which they run."""

    version: Positive
    name: Name
    model: CostModel
    mesh: tuple[MeshAxis, ...]
    arrays: tuple[TiledArray, ...]
    nodes: tuple[ArrayNode, ...]
    outputs: tuple[Name, ...]
    """Arrays that the program or step returns."""
    rules: tuple[TilingRule, ...] = ()
    call_ns: Count = 0
    """What the runtime takes for any call besides its work."""
    memory_bytes: Positive | None = None
    """Most that one worker may hold."""
    dup_bytes: Count = 0
    """Most that second copies may take in all; with 0 there are none."""

    @property
    def published(self) -> bool:
        """Whether it is solved on the graph of the paper: the model `seed`, or `exact` without rules on one axis."""
        return len(self.mesh) == 1 and self.model != "time" and all(node.operator != "rule" for node in self.nodes)

    def problems(self) -> Iterator[tuple[str, str, str]]:
        if len(self.nodes) > MAX_NODES:
            yield "$.nodes", str(len(self.nodes)), f"at most {MAX_NODES}"
        if not self.mesh:
            yield "$.mesh", "no axis", "at least one"
        if prod(axis.size for axis in self.mesh) > MOST_WORKERS:
            sizes = "x".join(str(axis.size) for axis in self.mesh)
            yield "$.mesh", sizes, f"at most {MOST_WORKERS} workers"
        made: set[str] = set()
        arrays = {array.id for array in self.arrays}
        for place, node in enumerate(self.nodes):
            for name in node.inputs:
                if name not in made:
                    yield f"$.nodes[{place}].inputs", name, "a result of an earlier node"
            for name in node.outputs:
                if name in made or name not in arrays:
                    yield f"$.nodes[{place}].outputs", name, "an array of the problem, made once"
            made.update(node.outputs)
            if any(rule >= len(self.rules) for rule in node.rules) or (node.operator == "rule") != bool(node.rules):
                yield f"$.nodes[{place}].rules", str(node.rules), "numbers of rules, for operator rule only"
        for name in self.outputs:
            if name not in made:
                yield "$.outputs", name, "an array that a node makes"
        for what, names in (
            ("arrays", [array.id for array in self.arrays]),
            ("nodes", [node.id for node in self.nodes]),
            ("mesh", [axis.name for axis in self.mesh]),
        ):
            if len(set(names)) < len(names):
                twice = next(name for place, name in enumerate(names) if name in names[:place])
                yield f"$.{what}", f"{twice} twice", "names of their own"
        order = {array.id: place for place, array in enumerate(self.arrays)}
        for place, array in enumerate(self.arrays):
            if array.id not in made:
                yield f"$.arrays[{place}].id", array.id, "an array that a node makes"
            for field, other in (("like", array.like), ("shares", array.shares)):
                if other is not None and order.get(other, place) >= place:
                    yield f"$.arrays[{place}].{field}", other, "an earlier array"
            if array.fixed is not None and len(array.fixed) != len(self.mesh):
                yield f"$.arrays[{place}].fixed", f"{len(array.fixed)} placements", f"{len(self.mesh)}, one per axis"
