"""Small programs of arrays for the published graph, written as one would type them."""

from __future__ import annotations

from typing import Any

from treadle.planner.passes.tiling.problem import ArrayNode, MeshAxis, TiledArray, TilingProblem


class Program:
    """Builds a problem: each method adds a node and returns the name of its result."""

    def __init__(self) -> None:
        self.nodes: list[ArrayNode] = []
        self.arrays: dict[str, TiledArray] = {}

    def add(self, operator: Any, inputs: tuple[str, ...], shape: tuple[int, ...], name: str = "", **extra: Any) -> str:
        name = name or f"v{len(self.nodes)}"
        fixed = extra.pop("fixed", None)
        item_bytes = extra.pop("item_bytes", 1)
        self.arrays[name] = TiledArray(id=name, shape=shape, dtype="float64", item_bytes=item_bytes, fixed=fixed)
        function = extra.pop("function", operator)
        node = ArrayNode(
            id=f"n{len(self.nodes)}", operator=operator, function=function, inputs=inputs, outputs=(name,), **extra
        )
        self.nodes.append(node)
        return name

    def shape(self, name: str) -> tuple[int, ...]:
        return self.arrays[name].shape

    def new(self, *shape: int, **extra: Any) -> str:
        return self.add("newarray", (), shape, **extra)

    def value(self, *shape: int, **extra: Any) -> str:
        return self.add("value", (), shape, **extra)

    def map(self, *inputs: str, **extra: Any) -> str:
        return self.add("map", inputs, self.shape(inputs[0]), **extra)

    def transposed(self, one: str, **extra: Any) -> str:
        return self.add("swapaxis", (one,), self.shape(one)[::-1], axes=(0, 1), **extra)

    def fold(self, one: str, *axes: int, **extra: Any) -> str:
        shape = tuple(size for axis, size in enumerate(self.shape(one)) if axis not in axes)
        return self.add("fold", (one,), shape, axes=axes, **extra)

    def slice(self, one: str, *region: tuple[int, int, int], **extra: Any) -> str:
        shape = tuple(max(0, -(-(stop - start) // step)) for start, stop, step in region)
        return self.add("slice", (one,), shape, params={"region": [list(row) for row in region]}, **extra)

    def dot(self, one: str, other: str, variant: str = "", **extra: Any) -> str:
        n, k = self.shape(one)
        variant = variant or ("b" if n <= k else "a")
        axes, update = ((1, 0), "all") if variant == "b" else ((0, -1), "each")
        return self.add("join_update", (one, other), (n, self.shape(other)[1]), axes=axes, update=update, **extra)

    def problem(self, workers: int, model: Any = "seed", **extra: Any) -> TilingProblem:
        last = self.nodes[-1].outputs[0]
        return TilingProblem(
            version=1,
            name="program",
            model=model,
            mesh=(MeshAxis(name="workers", size=workers),),
            arrays=tuple(self.arrays.values()),
            nodes=tuple(self.nodes),
            outputs=extra.pop("outputs", (last,)),
            **extra,
        )


def failure(size: int = 10) -> Program:
    """Figure 3.3: (A + B) + (A' + B'), on which the greedy search fails."""
    program = Program()
    a, b = program.new(size, size, name="A"), program.new(size, size, name="B")
    c = program.map(a, b, name="C")
    ta, tb = program.transposed(a, name="A'"), program.transposed(b, name="B'")
    d = program.map(ta, tb, name="D")
    program.map(c, d, name="E")
    return program
