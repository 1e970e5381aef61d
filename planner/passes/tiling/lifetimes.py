"""Which arrays of a problem are alive while each of its nodes runs, and which nothing reads after it."""

from __future__ import annotations

from treadle.planner.passes.tiling.problem import TilingProblem
from treadle.planner.passes.tiling.tile_maps import VIEWS


def moments(problem: TilingProblem) -> list[tuple[str, ...]]:
    """For each node the arrays, views aside, that are in memory while it runs: from their maker to their last reader,
    which may read them through views, and those that the program returns to its end."""
    source = {node.outputs[0]: node.inputs[0] for node in problem.nodes if node.operator in VIEWS}
    last: dict[str, int] = {}
    for place, node in enumerate(problem.nodes):
        for name in (*node.outputs, *node.inputs):
            last[_base(source, name)] = place
    for name in problem.outputs:
        last[_base(source, name)] = len(problem.nodes)
    found: list[tuple[str, ...]] = []
    alive: list[str] = []
    for place, node in enumerate(problem.nodes):
        alive = [name for name in alive if last[name] >= place]
        alive += [name for name in node.outputs if name not in source]
        found.append(tuple(alive))
    return found


def given_up(problem: TilingProblem) -> list[list[str]]:
    """For each node the arrays that it makes or reads and nothing needs after it, in the order in which they were made;
    what the program returns is always needed."""
    last = {name: place for place, node in enumerate(problem.nodes) for name in (*node.outputs, *node.inputs)}
    found: list[list[str]] = [[] for _ in problem.nodes]
    returned = set(problem.outputs)
    for name, place in last.items():
        if name not in returned:
            found[place].append(name)
    return found


def _base(source: dict[str, str], name: str) -> str:
    while name in source:
        name = source[name]
    return name
