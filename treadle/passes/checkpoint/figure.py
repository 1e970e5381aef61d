"""Pictures of a checkpoint plan: an iteration with its pieces, and which machine holds whose state."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
from treadle.planner.passes.checkpoint.events import ENGINE, TRAINING
from treadle.planner.timeline.simulator import Schedule, Task
from treadle.report.svg import PALETTE, HoverArea, figure, text_of
from treadle.report.timeline_figure import Bar

DRAWN_MACHINES = 48
CELL = 0.17
"""Inches."""
INK = "#1b1f24"


def bars_of(tasks: Sequence[Task], schedule: Schedule) -> list[Bar]:
    """Tasks that take time as bars; those of one kind that follow each other without a gap are one."""
    found: list[tuple[str, str, int, int]] = []
    ran = sorted(zip(schedule.start, schedule.end, tasks, strict=True), key=lambda each: (each[2].resources, each[0]))
    for start, end, task in ran:
        row, kind = task.resources[0], _kind(task)
        if found and found[-1][:2] == (row, kind) and found[-1][3] == start:
            found[-1] = (row, kind, found[-1][2], end)
        elif end > start:
            found.append((row, kind, start, end))
    order = sorted(found, key=lambda each: (each[0] != TRAINING, each[0] == ENGINE, each[2]))
    return [Bar(row, start / 1e3, (end - start) / 1e3, kind) for row, kind, start, end in order]


def _kind(task: Task) -> str:
    """The legend's word for a task: whose bytes it moves."""
    if task.resources[0] == TRAINING:
        return "update" if task.name == "update" else "computation"
    if task.resources[0] == ENGINE:
        return "own copy" if task.name == "own copy" else "out of buffers"
    return task.name if task.name.startswith("copy ") else "messages of the training"


def holders_svg(decisions: CheckpointDecisions) -> str:
    """SVG with a row for each machine and a column for each state; domains are parted by lines."""
    problem = decisions.problem
    drawn_count = min(problem.machines, DRAWN_MACHINES)
    size = 1.6 + CELL * max(drawn_count, 8)
    with figure(size + 1.4, size) as (drawn, axes):
        areas = []
        for turn in range(problem.copies):
            cells = [(owner, held[turn]) for owner, held in enumerate(decisions.holders[:drawn_count])]
            shown = [(owner, holder) for owner, holder in cells if holder < drawn_count]
            name = "own state" if turn == 0 else f"copy {turn}"
            colour = INK if turn == 0 else PALETTE[(turn - 1) % len(PALETTE)]
            axes.bar(
                [owner for owner, _ in shown],
                [0.8] * len(shown),
                bottom=[holder - 0.4 for _, holder in shown],
                width=0.8,
                color=colour,
                label=name,
            )
            areas += [
                HoverArea(
                    owner - 0.4, owner + 0.4, f"machine {holder} holds {name} of {owner}", holder - 0.4, holder + 0.4
                )
                for owner, holder in shown
            ]
        for place, (before, after) in enumerate(pairwise(problem.domains[:drawn_count])):
            if before != after:
                axes.axhline(place + 0.5, color=INK, linewidth=0.5)
                axes.axvline(place + 0.5, color=INK, linewidth=0.5)
        edge = (-0.6, drawn_count - 0.4)
        axes.set(xlabel="state of machine", ylabel="held by machine", xlim=edge, ylim=edge[::-1], aspect="equal")
        for axis in (axes.xaxis, axes.yaxis):
            axis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1), frameon=False)
        return text_of(drawn, [(axes, areas)])
