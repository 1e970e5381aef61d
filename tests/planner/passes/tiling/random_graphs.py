"""Random tiling graphs and programs, from a seed."""

from __future__ import annotations

from random import Random

import numpy as np

from tests.planner.passes.tiling.published_programs import Program
from treadle.planner.passes.tiling.capacity import Capacity
from treadle.planner.passes.tiling.graph import FORBIDDEN, Costs, TileEdge, TileGroup, TilingGraph


def random_graph(seed: int) -> tuple[TilingGraph, tuple[Capacity, ...]]:
    """2 to 9 groups of 1 to 4 labels, about half of all pairs joined, some by hard edges that permute labels; a limit
    in every third graph."""
    random = Random(seed)
    count = random.randint(2, 9)
    sizes = [random.randint(1, 4) for _ in range(count)]
    groups = tuple(
        TileGroup(f"g{place}", tuple(f"t{label}" for label in range(size)), _small(random, size))
        for place, size in enumerate(sizes)
    )
    edges = []
    for one in range(count):
        for other in range(one + 1, count):
            shape = (sizes[one], sizes[other])
            if shape[0] == shape[1] and random.random() < 0.2:
                costs = np.full(shape, FORBIDDEN)
                for label, partner in enumerate(random.sample(range(shape[1]), shape[1])):
                    costs[label, partner] = 0
                edges.append(TileEdge(one, other, costs, view=random.random() < 0.5, hard=True))
            elif random.random() < 0.5:
                costs = np.array(
                    [[random.choice((0, 0, random.randint(1, 20))) for _ in range(shape[1])] for _ in range(shape[0])]
                )
                if random.random() < 0.2:
                    costs[random.randrange(shape[0]), random.randrange(shape[1])] = FORBIDDEN
                edges.append(TileEdge(one, other, costs))
    weights = tuple((place, _small(random, size)) for place, size in enumerate(sizes))
    limited = (Capacity(weights, 4 * count),) if seed % 3 == 0 else ()
    return TilingGraph(groups, tuple(edges)), limited


def _small(random: Random, count: int) -> Costs:
    return np.array([random.randint(0, 9) for _ in range(count)], dtype=np.int64)


def random_program(seed: int, operators: int = 8) -> Program:
    """A program that draws operands from all arrays before, of 2 to 3 axes of up to 9 elements."""
    random, program = Random(seed), Program()
    side = random.choice((4, 6, 8))
    for _ in range(random.randint(1, 3)):
        program.new(side, side)
    for _ in range(operators):
        square = [name for name in program.arrays if program.shape(name) == (side, side)]
        one, other = random.choice(square), random.choice(square)
        match random.choice(("map", "map", "dot", "fold", "scan", "swap", "filter", "row", "slice")):
            case "map":
                program.map(one, other)
            case "dot":
                program.dot(one, other, random.choice("ab"))
            case "fold":
                program.fold(one, random.randint(0, 1))
            case "scan":
                program.add("scan", (one,), (side, side), axes=(random.randint(0, 1),))
            case "swap":
                program.transposed(one)
            case "filter":
                mask = program.fold(one, 1)
                program.add("filter", (one, mask), (side, side))
            case "row":
                program.add("map", (one, program.fold(other, 0)), (side, side))
            case "slice":
                half = program.slice(one, (0, side, 2), (1, side, 1))
                program.fold(half, random.randint(0, 1))
    return program
