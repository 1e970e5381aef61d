"""Programs of arrays for the published graph: random ones, and ALS.

Random programs draw two sizes from 128K to 512K, and square or oblong sources of those. Each operator (fold, map or
dot, equally likely) takes its operands from a pool and puts its result there, vectors aside; with probability 0.2 one
operand returns to it. A map of oblong operands transposes one where it has to; of square ones in 3 of 10 cases. The
program ends where no operands fit. In `shared` programs every operand stays in the pool.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from treadle.planner.passes.tiling.problem import VERSION, ArrayNode, CostModel, MeshAxis, TiledArray, TilingProblem

SIZES = (128 * 1024, 512 * 1024)
RETURNS = 0.2
TURNED = 0.3
ITEM_BYTES = 8
Shape = tuple[int, ...]


@dataclass
class ProgramBuilder:
    """Nodes and arrays as they are added; each call returns the name of the result."""

    nodes: list[ArrayNode] = field(default_factory=list)
    shapes: dict[str, Shape] = field(default_factory=dict)

    def add(self, operator: Any, inputs: tuple[str, ...], shape: Shape, **extra: Any) -> str:
        name = f"a{len(self.nodes)}"
        self.shapes[name] = shape
        function = extra.pop("function", operator)
        self.nodes.append(
            ArrayNode(id=f"n{name}", operator=operator, function=function, inputs=inputs, outputs=(name,), **extra)
        )
        return name

    def source(self, shape: Shape) -> str:
        return self.add("newarray", (), shape)

    def map(self, *inputs: str) -> str:
        return self.add("map", inputs, self.shapes[inputs[0]])

    def fold(self, one: str, axis: int) -> str:
        shape = self.shapes[one]
        return self.add("fold", (one,), (*shape[:axis], *shape[axis + 1 :]), axes=(axis,), function="sum")

    def transposed(self, one: str) -> str:
        return self.add("swapaxis", (one,), self.shapes[one][::-1], axes=(0, 1))

    def dot(self, one: str, other: str) -> str:
        """The variant that Spartan takes: each task updates all of the result if rows are at most columns."""
        (n, k), (_, m) = self.shapes[one], self.shapes[other]
        axes, update = ((1, 0), "all") if n <= k else ((0, -1), "each")
        return self.add("join_update", (one, other), (n, m), axes=axes, update=update, function="matmul")

    def problem(self, name: str, workers: int, model: CostModel, dup_bytes: int = 0) -> TilingProblem:
        """The problem on one axis of workers; arrays that nothing reads are its results."""
        read = {array for node in self.nodes for array in node.inputs}
        arrays = (
            TiledArray(id=array, shape=shape, dtype="float64", item_bytes=ITEM_BYTES)
            for array, shape in self.shapes.items()
        )
        return TilingProblem(
            version=VERSION,
            name=name,
            model=model,
            mesh=(MeshAxis(name="workers", size=workers),),
            arrays=tuple(arrays),
            nodes=tuple(self.nodes),
            outputs=tuple(array for array in self.shapes if array not in read),
            dup_bytes=dup_bytes,
        )


def random_program(random: Random, operators: int, sources: int, *, shared: bool = False) -> ProgramBuilder:
    """A program of up to `operators` folds, maps and dots on `sources` arrays."""
    program = ProgramBuilder()
    sizes = [random.randint(*SIZES) for _ in range(2)]
    pool = [program.source((random.choice(sizes), random.choice(sizes))) for _ in range(sources)]
    for _ in range(operators):
        drawn = _drawn(random, program, pool)
        if drawn is None:
            break
        made, used = drawn
        if not shared:
            for name in used:
                pool.remove(name)
            if random.random() < RETURNS:
                pool.append(random.choice(used))
        if len(program.shapes[made]) == 2:
            pool.append(made)
    return program


def _drawn(random: Random, program: ProgramBuilder, pool: list[str]) -> tuple[str, list[str]] | None:
    """The result of an operator and its operands, both drawn from what fits; None where nothing does."""
    kinds = random.sample(("fold", "map", "dot"), 3)
    for kind in kinds:
        for one in random.sample(pool, len(pool)):
            if kind == "fold":
                return program.fold(one, random.randint(0, 1)), [one]
            shape = program.shapes[one]
            others = [name for name in pool if name != one]
            if kind == "dot":
                fitting = [name for name in others if program.shapes[name][0] == shape[1]]
            else:
                fitting = [name for name in others if program.shapes[name] in (shape, shape[::-1])]
            if fitting:
                other = random.choice(fitting)
                if kind == "dot":
                    return program.dot(one, other), [one, other]
                turned = program.shapes[other] != shape or (shape[0] == shape[1] and random.random() < TURNED)
                return program.map(one, program.transposed(other) if turned else other), [one, other]
    return None


def als(users: int, items: int, factors: int, iterations: int) -> ProgramBuilder:
    """Alternating least squares: in each iteration the ratings are read by rows for users, then by columns for items.

    A step multiplies the ratings with the other factors; the small systems of factors are solved in a map. With 2
    iterations it has 14 operators.
    """
    program = ProgramBuilder()
    ratings, item_factors = program.source((users, items)), program.source((items, factors))
    for _ in range(iterations):
        product = program.add("join_update", (ratings, item_factors), (users, factors), axes=(0, -1), function="matmul")
        user_factors = program.map(product)
        turned = program.transposed(ratings)
        product = program.add("join_update", (turned, user_factors), (items, factors), axes=(0, -1), function="matmul")
        item_factors = program.map(product, item_factors)
    program.fold(item_factors, 1)
    program.fold(user_factors, 1)
    return program
