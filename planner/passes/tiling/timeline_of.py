"""The timeline of a plan: one operator after the other, each with what is moved before and after it."""

from __future__ import annotations

from math import prod

from treadle.planner.passes.tiling.decisions import NodeTiling, TiledEdge, TilingDecisions
from treadle.planner.passes.tiling.problem import ArrayNode, TilingProblem
from treadle.planner.timeline.simulator import Resource, Task

WORKERS = "workers"


def tasks_of(decisions: TilingDecisions) -> tuple[tuple[Task, ...], tuple[Resource, ...]]:
    """The tasks of all operators in a row, and what they hold: the workers, or axes of the mesh. They end when the
    plan does; operators take time only in problems in ns."""
    problem, tasks, clock = decisions.problem, list[Task](), _Clock(decisions)
    axes = [axis.name for axis in problem.mesh]
    before, after = dict[str, list[TiledEdge]](), dict[str, list[TiledEdge]]()
    for edge in decisions.edges:
        (after if edge.reading is None else before).setdefault(edge.node, []).append(edge)

    def add(name: str, duration: int, held: tuple[str, ...]) -> None:
        tasks.append(Task(name, duration, held, (len(tasks) - 1,) if tasks else ()))

    def move(edge: TiledEdge) -> None:
        words = ", ".join(dict.fromkeys(step.transfer for step in edge.steps))
        held = sorted({step.axis for step in edge.steps})
        add(f"{words} {edge.array}", clock.taken(edge), tuple(f"axis {axes[axis]}" for axis in held))

    for node, tiled in zip(problem.nodes, decisions.nodes, strict=True):
        for edge in before.get(node.id, ()):
            move(edge)
        if problem.model == "time":
            add(node.id, work_ns(problem, node, tiled), (WORKERS,))
        for edge in after.get(node.id, ()):
            move(edge)
    used = {name for task in tasks for name in task.resources}
    rows = (WORKERS, *(f"axis {name}" for name in axes))
    return tuple(tasks), tuple(Resource(name) for name in rows if name in used)


def work_ns(problem: TilingProblem, node: ArrayNode, tiled: NodeTiling) -> int:
    """What a worker takes for its share of the operator, the call included."""
    placements = zip(*tiled.reads, *tiled.makes, strict=True)
    shares = (
        axis.size
        for axis, here in zip(problem.mesh, placements, strict=True)
        if any(each.startswith("S") for each in here)
    )
    return -(-node.work_ns // prod(shares)) + problem.call_ns


class _Clock:
    """Times of moves, which add up to that of the plan: in problems in elements each has a share of it by what it
    moves, and their sums are rounded."""

    def __init__(self, decisions: TilingDecisions) -> None:
        self.in_ns = decisions.problem.model == "time"
        self.by_cost = decisions.problem.published
        self.all = decisions.cost if self.by_cost else decisions.moved_bytes
        self.time_ns = decisions.time_ns
        self.moved = self.now = 0

    def taken(self, edge: TiledEdge) -> int:
        if self.in_ns:
            return edge.cost
        self.moved += edge.cost if self.by_cost else edge.bytes
        before, self.now = self.now, self.moved * self.time_ns // max(1, self.all)
        return self.now - before
