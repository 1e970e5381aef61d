"""A tiling plan as a section of the report: how each array is cut, what is moved, when."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from treadle.passes.tiling.figure import bars_of, drawn_arrays, names_of, tiles_svg
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time, many
from treadle.planner.passes.tiling.decisions import TiledEdge, TilingDecisions
from treadle.planner.passes.tiling.problem import ArrayTiling, TilingProblem
from treadle.planner.passes.tiling.timeline_of import tasks_of
from treadle.planner.timeline.simulator import simulate
from treadle.report.page import Picture, Section, Table, titled
from treadle.report.timeline_figure import timeline_svg

LISTED = 40
"""The most arrays, and the most moves, that are listed, the largest first."""
UNITS = {"seed": "elements", "exact": "elements", "time": "ns"}
ALONE = {
    "R": "whole on every worker",
    "P": "a partial result on every worker",
    "B": "blocks of axes 0 and 1",
    "D0": "axis 0, and a second copy along axis 1",
    "D1": "axis 1, and a second copy along axis 0",
}


def tiling_section(name: str, plan: Plan[TilingDecisions]) -> Section:
    """The section of one tiling plan."""
    decisions = plan.decisions
    return Section(
        titled("Tilings", name),
        _text(decisions),
        (_transfers(decisions), _moves(decisions), _arrays(decisions)),
        (_tiles(decisions), *([_timeline(decisions)] if decisions.time_ns else [])),
    )


def tiling_words(problem: TilingProblem, tiling: ArrayTiling) -> str:
    """A tiling in words: what is cut, and on a mesh of several axes by which of them."""
    if len(tiling) == 1:
        return ALONE.get(tiling[0], f"axis {tiling[0][1:]}")
    parts = [
        f"partial by {axis.name}" if word == "P" else f"axis {word[1:]} by {axis.name}"
        for axis, word in zip(problem.mesh, tiling, strict=True)
        if word != "R"
    ]
    return ", ".join(parts) or ALONE["R"]


def _text(decisions: TilingDecisions) -> str:
    problem = decisions.problem
    mesh = f" ({' x '.join(f'{axis.size} {axis.name}' for axis in problem.mesh)})" if problem.mesh[1:] else ""
    cut = sum(any(word[0] in "SBD" for word in tiling) for tiling in decisions.tilings)
    moved = format_bytes(decisions.moved_bytes)
    cost = format_time(decisions.cost) if problem.model == "time" else f"{decisions.cost:,} {UNITS[problem.model]}"
    return (
        f"{many(len(problem.nodes), 'operator')} on {many(len(problem.arrays), 'array')}, of which {cut} are cut, over "
        f"{many(prod(axis.size for axis in problem.mesh), 'worker')}{mesh}. Cost of the plan: {cost}. Workers send "
        f"each other {moved}; the fullest one holds {format_bytes(decisions.memory_bytes)}."
    )


def _transfers(decisions: TilingDecisions) -> Table:
    """What is moved, by how: a move of several transfers counts for each."""
    kinds: dict[tuple[str, str], list[TiledEdge]] = {}
    for edge in decisions.edges:
        words = ", then ".join(f"{step.transfer}{_along(decisions, step.axis)}" for step in edge.steps)
        when = "before an operator" if edge.reading is not None else "after an operator"
        kinds.setdefault((words, when), []).append(edge)
    rows = sorted(
        ((words, when, str(len(each)), sum(edge.bytes for edge in each)) for (words, when), each in kinds.items()),
        key=lambda row: -row[3],
    )
    table = tuple((words, when, count, format_bytes(moved)) for words, when, count, moved in rows)
    return Table(("transfer", "when", "moves", "bytes"), table, "What is moved, by how and when.", words=True)


def _along(decisions: TilingDecisions, axis: int) -> str:
    mesh = decisions.problem.mesh
    return f" by {mesh[axis].name}" if len(mesh) > 1 else ""


def _moves(decisions: TilingDecisions) -> Table:
    largest = sorted(decisions.edges, key=lambda edge: (-edge.cost, -edge.bytes))[:LISTED]
    functions = {node.id: node.function for node in decisions.problem.nodes}
    names = names_of(decisions.problem)
    rows = tuple(
        (
            names[edge.array],
            ", ".join(step.transfer for step in edge.steps),
            tiling_words(decisions.problem, edge.steps[-1].tiling),
            f"{'after' if edge.reading is None else 'before'} {edge.node} ({functions[edge.node]})",
            format_bytes(edge.bytes),
            f"{edge.cost:,}",
        )
        for edge in largest
    )
    head = ("array", "transfer", "becomes", "where", "bytes", UNITS[decisions.problem.model])
    return Table(head, rows, f"{_largest('moves', rows, decisions.edges)} by cost.", words=True)


def _arrays(decisions: TilingDecisions) -> Table:
    problem = decisions.problem
    names, pairs = names_of(problem), [*zip(problem.arrays, decisions.tilings, strict=True)]
    largest = sorted(pairs, key=lambda pair: -prod(pair[0].shape) * pair[0].item_bytes)[:LISTED]
    rows = tuple(
        (
            names[array.id],
            " x ".join(map(str, array.shape)) or "a number",
            array.dtype,
            format_bytes(prod(array.shape) * array.item_bytes),
            tiling_words(problem, tiling),
        )
        for array, tiling in largest
    )
    head = ("array", "shape", "dtype", "bytes", "cut along")
    return Table(head, rows, f"{_largest('arrays', rows, pairs)} by bytes.", words=True)


def _largest(what: str, shown: Sequence[object], among: Sequence[object]) -> str:
    return f"All {what}" if len(shown) == len(among) else f"The first {len(shown)} of {len(among)} {what}"


def _tiles(decisions: TilingDecisions) -> Picture:
    drawn, kinds = drawn_arrays(decisions)
    left = "" if len(drawn) == kinds else f" Drawn are {len(drawn)} of {kinds} kinds of arrays, the largest."
    caption = (
        "How arrays are cut: one of each shape and tiling, colours are workers. Grey is held by several, hatched is a "
        f"partial result.{left}"
    )
    return Picture(tiles_svg(decisions, drawn), caption)


def _timeline(decisions: TilingDecisions) -> Picture:
    tasks, resources = tasks_of(decisions)
    schedule = simulate(tasks, resources)
    caption = f"Work and moves, one operator after the other: {format_time(schedule.makespan)} predicted."
    return Picture(timeline_svg(bars_of(tasks, schedule)), caption)
