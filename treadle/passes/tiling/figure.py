"""Pictures of a tiling plan: arrays with the tiles of each worker, and the timeline of work and moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import ceil, prod
from typing import Any, NamedTuple

from treadle.planner.passes.tiling.decisions import TilingDecisions
from treadle.planner.passes.tiling.problem import ArrayTiling, TiledArray, TilingProblem
from treadle.planner.passes.tiling.tile_maps import grid
from treadle.planner.timeline.simulator import Schedule, Task
from treadle.report.svg import PALETTE, HoverArea, label_colour, styled, text_of
from treadle.report.timeline_figure import Bar, thinned

COLUMNS = 6
MOST_DRAWN = 18
GREY = "#d0d7de"
FEWEST = 0.15
"""The shorter side of an array that is drawn, of the longer one."""
Parts = tuple[tuple[int, int], ...]


class DrawnTile(NamedTuple):
    """A rectangle of the unit square, from the top left on, and the workers that hold it."""

    top: float
    left: float
    height: float
    width: float
    workers: tuple[int, ...]


def drawn_arrays(decisions: TilingDecisions) -> tuple[list[int], int]:
    """Places of the arrays that are drawn, one of each shape and tiling, and the number of such kinds."""
    kinds: dict[object, int] = {}
    for place, (array, tiling) in enumerate(zip(decisions.problem.arrays, decisions.tilings, strict=True)):
        kinds.setdefault((array.shape, array.item_bytes, tiling), place)
    arrays = decisions.problem.arrays
    largest = sorted(kinds.values(), key=lambda place: -prod(arrays[place].shape) * arrays[place].item_bytes)
    return sorted(largest[:MOST_DRAWN]), len(kinds)


def names_of(problem: TilingProblem) -> dict[str, str]:
    """What arrays are called: parameters of a model as it calls them."""
    names = {array.id: array.id for array in problem.arrays}
    for node in problem.nodes:
        if isinstance(name := node.params.get("name"), str) and len(node.outputs) == 1:
            names[node.outputs[0]] = name
    return names


def tiles_svg(decisions: TilingDecisions, places: Sequence[int]) -> str:
    """SVG of these arrays, each with its tiles in the colours of their workers."""
    problem, columns = decisions.problem, min(COLUMNS, max(1, len(places)))
    rows = max(1, ceil(len(places) / columns))
    with styled(figsize=(1.75 * columns, 2.05 * rows), layout="constrained") as drawn:
        panels = drawn.subplots(rows, columns, squeeze=False).ravel()
        found, names = [], names_of(problem)
        for axes in panels[len(places) :]:
            axes.axis("off")
        for axes, place in zip(panels, places, strict=False):
            array, tiling = problem.arrays[place], decisions.tilings[place]
            found.append((axes, [*_drawn(axes, problem, array, tiling, names[array.id])]))
        return text_of(drawn, found)


def _drawn(axes: Any, problem: TilingProblem, array: TiledArray, tiling: ArrayTiling, name: str) -> Iterator[HoverArea]:
    from matplotlib.patches import Rectangle

    height, width = _size(array, tiling)
    for tile in tiles_of(problem, array, tiling):
        colour = GREY if len(tile.workers) > 1 else PALETTE[tile.workers[0] % len(PALETTE)]
        left, top = (1 - width) / 2 + tile.left * width, tile.top * height
        right, bottom = left + tile.width * width, top + tile.height * height
        axes.add_patch(
            Rectangle(
                (left, top),
                right - left,
                bottom - top,
                facecolor=colour,
                edgecolor="white",
                linewidth=0.8,
                hatch="////" if "P" in tiling else None,
            )
        )
        named = str(tile.workers[0]) if len(tile.workers) == 1 else ""
        if named and min(right - left, 2 * (bottom - top)) > 0.11:
            ink = label_colour(colour)
            axes.text((left + right) / 2, (top + bottom) / 2, named, ha="center", va="center", fontsize=7, color=ink)
        workers = ", ".join(map(str, tile.workers[:16])) + (", ..." if len(tile.workers) > 16 else "")
        kind = "a partial result" if "P" in tiling else "held"
        yield HoverArea(left, right, f"{name}: {kind} by {workers}", bottom, top)
    shape = " x ".join(map(str, array.shape)) or "a number"
    axes.set_title(f"{_short(name)}\n{shape}\n{', '.join(tiling)}", fontsize=7.5)
    axes.set(xlim=(-0.02, 1.02), ylim=(1.02, -0.02), aspect="equal")
    axes.axis("off")


def _short(name: str) -> str:
    return name if len(name) <= 22 else f"{name[:10]}...{name[-9:]}"


def shown_axes(array: TiledArray, tiling: ArrayTiling) -> tuple[int | None, int | None]:
    """The axes of an array that are drawn from top to bottom and from left to right: those that are cut, then the
    first ones."""
    cut = [int(word[1:]) for word in tiling if word[0] == "S"]
    order = [*dict.fromkeys([*(axis for axis in cut if axis < len(array.shape)), *range(len(array.shape))])][:2]
    order.sort()
    return (order[0] if order else None, order[1] if len(order) > 1 else None)


def _size(array: TiledArray, tiling: ArrayTiling) -> tuple[float, float]:
    """Height and width of the drawing, in parts of the square."""
    down, right = (1 if axis is None else max(1, array.shape[axis]) for axis in shown_axes(array, tiling))
    if len(array.shape) < 2:
        return (1.0 if array.shape else FEWEST), FEWEST
    longest = max(down, right)
    return max(FEWEST, down / longest), max(FEWEST, right / longest)


def tiles_of(problem: TilingProblem, array: TiledArray, tiling: ArrayTiling) -> list[DrawnTile]:
    """The tiles of the first copy; workers that have the same part share one."""
    down, right = shown_axes(array, tiling)
    held: dict[tuple[tuple[float, float], tuple[float, float]], list[int]] = {}
    for worker, places in enumerate(product(*(range(axis.size) for axis in problem.mesh))):
        parts = {axis: (0, 1 if axis is None else array.shape[axis]) for axis in (down, right)}
        for axis, word, place in zip(problem.mesh, tiling, places, strict=True):
            _cut(parts, array, word, place, axis.size)
        rows, columns = (_share(parts[axis], array, axis) for axis in (down, right))
        if not array.shape and tiling == ("S0",) and worker:
            continue
        if rows[1] > 0 and columns[1] > 0:
            held.setdefault((rows, columns), []).append(worker)
    return [
        DrawnTile(rows[0], columns[0], rows[1], columns[1], tuple(workers)) for (rows, columns), workers in held.items()
    ]


def _cut(parts: dict[int | None, tuple[int, int]], array: TiledArray, word: str, place: int, size: int) -> None:
    """Narrow the part of a worker, (first index, count) along each drawn axis."""
    cuts = []
    if word == "B":
        rows, columns = grid(size)
        cuts = [(0, place // columns, rows), (1, place % columns, columns)]
    elif word[0] in "SD" and array.shape:
        cuts = [(int(word[1:]), place, size)]
    for axis, number, count in cuts:
        if axis in parts:
            first, length = parts[axis]
            chunk = -(-length // count)
            begin = min(length, number * chunk)
            parts[axis] = (first + begin, min(chunk, length - begin))


def _share(part: tuple[int, int], array: TiledArray, axis: int | None) -> tuple[float, float]:
    """First index and count as parts of the axis."""
    whole = 1 if axis is None else max(1, array.shape[axis])
    return part[0] / whole, part[1] / whole


def bars_of(tasks: Sequence[Task], schedule: Schedule) -> list[Bar]:
    """Work and moves as bars, rows of moves by axes of the mesh; those too thin to be seen are put together."""
    bars: dict[str, list[Bar]] = {}
    for task, start, end in zip(tasks, schedule.start, schedule.end, strict=True):
        if end > start:
            group = "work" if task.resources[0] == "workers" else task.name.partition(" ")[0].rstrip(",")
            row = ", ".join(task.resources)
            bars.setdefault(row, []).append(Bar(row, start / 1e3, (end - start) / 1e3, group, task.name))
    narrow = schedule.makespan / 1e3 / 1000
    return [each for row in sorted(bars, reverse=True) for each in thinned(bars[row], narrow)]
