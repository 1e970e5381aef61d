"""Random problems of tiling of both kinds: programs of arrays on one axis, and graphs of rules on meshes."""

from __future__ import annotations

import random
from typing import Any, Literal

from treadle.planner.passes.tiling.problem import (
    VERSION,
    ArrayNode,
    ArrayOperator,
    CostModel,
    MeshAxis,
    TiledArray,
    TilingProblem,
    TilingRule,
    TransferCost,
)

Shape = tuple[int, ...]
STEPS = ("maps", "maps", "maps", "folds", "folds", "scans", "joins", "joins", "slices", "swaps", "filters")
ITEMS = (("float64", 8), ("float32", 4), ("int8", 1))


class Program:
    """A program of arrays under construction."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.arrays: list[TiledArray] = []
        self.nodes: list[ArrayNode] = []
        self.masked: set[str] = set()

    def add(
        self, operator: ArrayOperator, shape: Shape, *inputs: TiledArray, function: str = "f", **fields: Any
    ) -> TiledArray:
        name = f"a{len(self.arrays)}"
        dtype, item = self.draw.choice(ITEMS)
        array = TiledArray(id=name, shape=shape, dtype=dtype, item_bytes=item, masked=operator == "filter")
        self.arrays.append(array)
        self.nodes.append(
            ArrayNode(
                id=f"n{len(self.nodes)}",
                operator=operator,
                function=function,
                inputs=tuple(each.id for each in inputs),
                outputs=(name,),
                **fields,
            )
        )
        return array

    def new(self, shape: Shape | None = None) -> TiledArray:
        if shape is None:
            rank = self.draw.choice((0, 1, 1, 2, 2, 2, 2, 3))
            shape = tuple(self.draw.choice((1, 2, 3, 4, 5, 6, 7, 8, 12)) for _ in range(rank))
        return self.add(self.draw.choice(("newarray", "newarray", "newarray", "value")), shape)

    def pick(self, rank: int = 0) -> TiledArray:
        """An earlier array of at least that rank, often a late one."""
        known = [array for array in self.arrays[-4:] + self.arrays if len(array.shape) >= rank]
        return self.draw.choice(known) if known else self.new(tuple(self.draw.randint(1, 6) for _ in range(rank)))

    def axes(self, array: TiledArray, count: int) -> tuple[int, ...]:
        """Different axes, some counted from the end."""
        rank = len(array.shape)
        return tuple(axis - rank * self.draw.choice((0, 0, 1)) for axis in self.draw.sample(range(rank), count))

    def step(self) -> None:
        """One more operator."""
        getattr(self, self.draw.choice(STEPS))()

    def maps(self) -> None:
        first = self.pick()
        inputs = [first]
        for _ in range(self.draw.choice((0, 1, 1, 2))):
            match self.draw.randrange(4):
                case 0:
                    inputs.append(first)
                case 1:
                    ends = tuple(self.draw.choice((1, size)) for size in first.shape)
                    inputs.append(self.new(ends[self.draw.randint(0, len(ends)) :]))
                case _:
                    same = [array for array in self.arrays if array.shape == first.shape]
                    inputs.append(self.draw.choice(same))
        self.draw.shuffle(inputs)
        self.add("map", first.shape, *inputs)

    def folds(self) -> None:
        source = self.pick(1)
        axes = self.axes(source, self.draw.choice((1, 1, len(source.shape))))
        gone = {axis % len(source.shape) for axis in axes}
        kept = self.draw.random() < 0.3
        shape = tuple(1 if axis in gone else size for axis, size in enumerate(source.shape) if kept or axis not in gone)
        self.add("fold", shape, source, axes=axes, function="sum", params={"keepdims": kept})

    def scans(self) -> None:
        source = self.pick(1)
        self.add("scan", source.shape, source, axes=self.axes(source, 1), function="cumsum")

    def joins(self) -> None:
        inputs = [self.pick(1) for _ in range(self.draw.choice((1, 2, 2, 3)))]
        axes = tuple(self.draw.choice((-1, *range(len(array.shape)))) for array in inputs)
        update: Literal["each", "all"] = self.draw.choice(("each", "all"))
        shape = tuple(self.draw.randint(1, 8) for _ in range(self.draw.choice((1, 2, 2))))
        observed = self.draw.choice((None, None, 7))
        self.add("join_update", shape, *inputs, axes=axes, update=update, observed_update=observed, function="m:f")

    def slices(self) -> None:
        source = self.pick(1)
        region = []
        for size in source.shape:
            start = self.draw.randint(0, size)
            row = self.draw.choice(
                ([0, size, 1], [start, self.draw.randint(start, size), self.draw.choice((1, 1, 2, 3))])
            )
            region.append(row)
        shape = tuple(len(range(*row)) for row in region)
        if all(shape):
            self.add("slice", shape, source, params={"region": region}, function="slice")

    def swaps(self) -> None:
        source = self.pick(2)
        axes = self.axes(source, 2)
        order = list(source.shape)
        order[axes[0]], order[axes[1]] = order[axes[1]], order[axes[0]]
        self.add("swapaxis", tuple(order), source, axes=axes, function="swapaxes")

    def filters(self) -> None:
        source = self.pick(1)
        self.add("filter", source.shape, source, self.new(source.shape[:1]), function="filter")

    def outputs(self) -> tuple[str, ...]:
        last = self.arrays[-1].id
        return tuple(dict.fromkeys((last, self.draw.choice(self.arrays).id)))


def published(seed: int, length: int = 8, model: CostModel | None = None) -> TilingProblem:
    """A program of arrays with views, broadcasts and second copies, on one axis of workers that may divide nothing."""
    program = Program(seed)
    program.new((program.draw.randint(2, 8), program.draw.randint(2, 8)))
    while len(program.nodes) < length:
        program.step()
    if program.draw.random() < 0.2:
        at = program.draw.randrange(len(program.arrays))
        array = program.arrays[at]
        words = [f"S{axis}" for axis in range(max(1, len(array.shape)))] + (["B"] if len(array.shape) > 1 else [])
        fixed = {field: getattr(array, field) for field in array.__struct_fields__}
        program.arrays[at] = TiledArray(**{**fixed, "fixed": (program.draw.choice(words),)})
    costs = (TransferCost(transfer="allgather", rate=12_345),) if program.draw.random() < 0.3 else ()
    return TilingProblem(
        version=VERSION,
        name=f"program {seed}",
        model=model or program.draw.choice(("seed", "exact")),
        mesh=(MeshAxis(name="workers", size=program.draw.choice((1, 2, 3, 4, 5, 6, 8)), costs=costs),),
        arrays=tuple(program.arrays),
        nodes=tuple(program.nodes),
        outputs=program.outputs(),
        dup_bytes=program.draw.choice((0, 0, 50, 400, 10_000)),
    )


RULES = (
    (("S0", "S0"), ("S0",)),
    (("S1", "S1"), ("S1",)),
    (("R", "R"), ("R",)),
    (("S0", "R"), ("S0",)),
    (("R", "S1"), ("S1",)),
    (("S1", "S0"), ("P",)),
    (("P", "P"), ("P",)),
    (("P", "R"), ("P",)),
)
"""Those of matrix products and of sums, for operators of two inputs and one result."""


def ruled(seed: int, length: int = 7, model: CostModel | None = None) -> TilingProblem:
    """A graph of rules, and of operators of arrays, on a mesh of one to three axes."""
    program = Program(seed)
    draw = program.draw
    sizes = draw.choice(((2,), (4,), (2, 2), (2, 4), (3, 2), (2, 2, 2)))
    shapes = [tuple(draw.choice((4, 8, 12, 24)) for _ in range(2)) for _ in range(2)]
    program.new(shapes[0])
    while len(program.nodes) < length:
        if draw.random() < 0.6:
            shape = draw.choice(shapes)
            known = [array for array in program.arrays if array.shape == shape]
            inputs = [draw.choice(known) if known and draw.random() < 0.9 else program.new(shape) for _ in range(2)]
            rules = tuple(sorted({2, *draw.sample(range(len(RULES)), draw.randint(2, len(RULES)))}))
            node = program.add(
                "rule", shape, *inputs, function="aten.mm.default", rules=rules, work_ns=draw.randint(0, 99)
            )
            program.arrays[-1] = _adorned(program, node, shape)
        else:
            program.step()
    problem_model: CostModel = model or draw.choice(("exact", "time", "time"))
    return TilingProblem(
        version=VERSION,
        name=f"rules {seed}",
        model=problem_model if len(sizes) > 1 or any(node.operator == "rule" for node in program.nodes) else "time",
        mesh=tuple(
            MeshAxis(
                name=f"axis{place}",
                size=size,
                alltoall=draw.choice(("direct", "gathered")),
                costs=tuple(
                    TransferCost(transfer=transfer, alpha_ns=draw.randint(0, 40), rate=draw.choice((10**8, 3 * 10**9)))
                    for transfer in ("allgather", "reduce-scatter", "allreduce", "alltoall")
                ),
            )
            for place, size in enumerate(sizes)
        ),
        arrays=tuple(program.arrays),
        nodes=tuple(program.nodes),
        outputs=program.outputs(),
        rules=tuple(TilingRule(inputs=inputs, outputs=outputs) for inputs, outputs in RULES),
        call_ns=draw.choice((0, 5)),
    )


def _adorned(program: Program, array: TiledArray, shape: Shape) -> TiledArray:
    """Sometimes with the tiling or the memory of an earlier array, or with states that are kept."""
    draw = program.draw
    earlier = [each.id for each in program.arrays[:-1] if each.shape == shape]
    fields: dict[str, Any] = {field: getattr(array, field) for field in array.__struct_fields__}
    match draw.randrange(6):
        case 0 if earlier:
            fields["like"] = draw.choice(earlier)
        case 1 if earlier:
            fields["shares"] = draw.choice(earlier)
        case 2:
            fields["kept_item_bytes"] = draw.choice((4, 16))
    return TiledArray(**fields)
