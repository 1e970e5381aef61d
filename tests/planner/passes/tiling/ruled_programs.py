"""Ruled problems from a seed: small random ones, and the forward pass of a transformer's layers."""

from __future__ import annotations

from math import prod
from random import Random

from treadle.planner.passes.tiling.problem import (
    VERSION,
    ArrayNode,
    CostModel,
    MeshAxis,
    TiledArray,
    TilingProblem,
    TilingRule,
    TransferCost,
)

Rules = list[tuple[tuple[str, ...], tuple[str, ...]]]
Shape = tuple[int, ...]


def axis(name: str, size: int) -> MeshAxis:
    costs = tuple(
        TransferCost(transfer=transfer, alpha_ns=10 * (size - 1), rate=10**9 * size)
        for transfer in ("allgather", "reduce-scatter", "allreduce", "alltoall")
    )
    return MeshAxis(name=name, size=size, costs=costs)


class RuledProgram:
    """Builds a problem call by call; `made` are the ids and shapes of its arrays."""

    def __init__(self) -> None:
        self.arrays: list[TiledArray] = []
        self.nodes: list[ArrayNode] = []
        self.rules: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}
        self.shapes: dict[str, Shape] = {}

    def call(
        self,
        function: str,
        inputs: tuple[str, ...],
        shape: Shape,
        rules: Rules,
        *,
        kept: int = 0,
        like: str | None = None,
        shares: str | None = None,
    ) -> str:
        name = f"{function}{len(self.nodes)}"
        numbers = tuple(self.rules.setdefault(rule, len(self.rules)) for rule in dict.fromkeys(rules))
        self.shapes[name] = shape
        array = TiledArray(id=name, shape=shape, dtype="float32", item_bytes=4, kept_item_bytes=kept, like=like)
        self.arrays.append(
            array if shares is None else TiledArray(id=name, shape=shape, dtype="float32", item_bytes=4, shares=shares)
        )
        self.nodes.append(
            ArrayNode(
                id=f"{name}.call",
                operator="rule",
                function=function,
                inputs=inputs,
                outputs=(name,),
                rules=numbers,
                work_ns=prod(shape) * (1 + len(inputs)),
            )
        )
        return name

    def source(self, *shape: int, kept: int = 0, like: str | None = None) -> str:
        cuts: Rules = [((), (f"S{at}",)) for at in range(len(shape))]
        return self.call("source", (), shape, [*cuts, ((), ("R",))], kept=kept, like=like)

    def matmul(self, one: str, other: str) -> str:
        rules: Rules = [
            (("S0", "R"), ("S0",)),
            (("R", "S1"), ("S1",)),
            (("S1", "S0"), ("P",)),
            (("R", "R"), ("R",)),
        ]
        return self.call("matmul", (one, other), (self.shapes[one][0], self.shapes[other][1]), rules)

    def add(self, *inputs: str) -> str:
        shape = self.shapes[inputs[0]]
        words = [*(f"S{at}" for at in range(len(shape))), "R", "P"]
        return self.call("add", inputs, shape, [((word,) * len(inputs), (word,)) for word in words])

    def norm(self, name: str) -> str:
        return self.call("norm", (name,), self.shapes[name], [(("S0",), ("S0",)), (("R",), ("R",))])

    def transposed(self, name: str) -> str:
        rules: Rules = [(("S0",), ("S1",)), (("S1",), ("S0",)), (("R",), ("R",)), (("P",), ("P",))]
        return self.call("t", (name,), self.shapes[name][::-1], rules, shares=name)

    def problem(
        self, mesh: tuple[int, ...], outputs: tuple[str, ...], model: CostModel = "time", memory: int | None = None
    ) -> TilingProblem:
        return TilingProblem(
            version=VERSION,
            name="ruled",
            model=model,
            mesh=tuple(axis(f"x{place}", size) for place, size in enumerate(mesh)),
            arrays=tuple(self.arrays),
            nodes=tuple(self.nodes),
            outputs=outputs,
            rules=tuple(TilingRule(inputs=inputs, outputs=made) for inputs, made in self.rules),
            call_ns=5,
            memory_bytes=memory,
        )


def random_ruled(seed: int, mesh: tuple[int, ...] = (2,), calls: int = 4, model: CostModel = "time") -> TilingProblem:
    """Square matrices, sums, products and views that are read again."""
    random, program = Random(seed), RuledProgram()
    pool = [program.source(8, 8, kept=random.choice((0, 8))), program.source(8, 8)]
    for _ in range(calls):
        kind = random.choice(("matmul", "add", "norm", "t", "gradient"))
        one, other = random.choice(pool), random.choice(pool)
        if kind == "matmul":
            made = program.matmul(one, other)
        elif kind == "add":
            made = program.add(one, other)
        elif kind == "norm":
            made = program.norm(one)
        elif kind == "t":
            made = program.transposed(one)
        else:
            rules: Rules = [(("S0",), ("S0",)), (("S1",), ("S1",)), (("R",), ("R",))]
            made = program.call("gradient", (one,), (8, 8), rules, like=pool[0])
        pool.append(made)
    return program.problem(mesh, (pool[-1],), model)


def transformer(layers: int, mesh: tuple[int, ...] = (2, 4), memory: int | None = None) -> TilingProblem:
    """Layers of two products with a residual each, and the gradients of their weights in reverse."""
    program = RuledProgram()
    stream, saved = program.source(64, 64), []
    for _ in range(layers):
        wide, back = program.source(64, 256, kept=8), program.source(256, 64, kept=8)
        normed = program.norm(stream)
        inner = program.norm(program.matmul(normed, wide))
        stream = program.add(stream, program.matmul(inner, back))
        saved.append((normed, inner, wide, back))
    gradient, gradients = program.norm(stream), []
    for normed, inner, wide, back in reversed(saved):
        inward = program.matmul(gradient, program.transposed(back))
        gradients.append(_gradient(program, inner, gradient, back))
        gradients.append(_gradient(program, normed, inward, wide))
        gradient = program.add(gradient, program.matmul(inward, program.transposed(wide)))
    return program.problem(mesh, (gradient, *gradients), memory=memory)


def _gradient(program: RuledProgram, read: str, gradient: str, weight: str) -> str:
    made = program.matmul(program.transposed(read), gradient)
    rules: Rules = [(("S0",), ("S0",)), (("S1",), ("S1",)), (("R",), ("R",))]
    return program.call("gradient", (made,), program.shapes[made], rules, like=weight)
