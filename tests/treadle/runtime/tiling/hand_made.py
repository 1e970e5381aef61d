"""Plans of arrays made by hand, for the interpreter of tiles."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from treadle.planner.passes.tiling.decisions import NodeTiling, TiledEdge, TilingDecisions, TransferStep
from treadle.planner.passes.tiling.problem import ArrayNode, ArrayTiling, MeshAxis, TiledArray, TilingProblem


@dataclass
class HandMade:
    """Nodes of a plan on `mesh`, each with what it makes and its reading and leaving tilings."""

    mesh: tuple[int, ...]
    model: str = "exact"
    alltoall: str = "direct"
    arrays: list[TiledArray] = field(default_factory=list)
    nodes: list[ArrayNode] = field(default_factory=list)
    tilings: list[ArrayTiling] = field(default_factory=list)
    tiled: list[NodeTiling] = field(default_factory=list)
    edges: list[TiledEdge] = field(default_factory=list)

    def add(
        self,
        name: str,
        operator: str,
        function: str,
        inputs: Iterable[str],
        shape: tuple[int, ...],
        tiling: Iterable[str],
        *,
        reads: Iterable[Iterable[str]] | None = None,
        makes: Iterable[str] | None = None,
        dtype: str = "float64",
        masked: bool = False,
        **more: Any,
    ) -> str:
        """Add a node and its array; without `reads` and `makes` it reads and makes what is there."""
        inputs, tiling = tuple(inputs), tuple(tiling)
        have = {array.id: each for array, each in zip(self.arrays, self.tilings, strict=True)}
        item = np.dtype(dtype).itemsize
        self.arrays.append(TiledArray(id=name, shape=shape, dtype=dtype, item_bytes=item, masked=masked))
        self.nodes.append(
            ArrayNode(
                id=f"{name}.{operator}", operator=operator, function=function, inputs=inputs, outputs=(name,), **more
            )
        )
        found = tuple(have[each] for each in inputs) if reads is None else tuple(map(tuple, reads))
        self.tiled.append(
            NodeTiling(node=f"{name}.{operator}", reads=found, makes=(tiling if makes is None else tuple(makes),))
        )
        self.tilings.append(tiling)
        return name

    def value(self, name: str, data: Any, tiling: Iterable[str]) -> str:
        """Add an array with these values."""
        made = np.asarray(data)
        params = {"data": made.ravel().tolist()}
        return self.add(name, "value", "value", (), made.shape, tiling, dtype=str(made.dtype), params=params)

    def steps(self, array: str, node: str, reading: int | None, *steps: tuple[str, int, tuple[str, ...]]) -> None:
        """Add an edge of collectives."""
        made = tuple(TransferStep(transfer=word, axis=axis, tiling=tiling) for word, axis, tiling in steps)
        self.edges.append(TiledEdge(array=array, node=node, reading=reading, steps=made, bytes=0, cost=0))

    def plan(self, *outputs: str) -> TilingDecisions:
        """The decisions; costs are not filled in."""
        mesh = tuple(
            MeshAxis(name=f"axis{place}", size=size, alltoall=self.alltoall) for place, size in enumerate(self.mesh)
        )
        problem = TilingProblem(
            version=1, name="hand", model=self.model, mesh=mesh, arrays=tuple(self.arrays), nodes=tuple(self.nodes),
            outputs=outputs,
        )  # fmt: skip
        assert not list(problem.problems())
        return TilingDecisions(
            problem=problem, method="greedy", tilings=tuple(self.tilings), nodes=tuple(self.tiled),
            edges=tuple(self.edges), cost=0, moved_bytes=0, memory_bytes=0, time_ns=0,
        )  # fmt: skip
