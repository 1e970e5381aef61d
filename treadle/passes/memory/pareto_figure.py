"""Time over bytes: the least time found and the least possible one at each budget, and what others reach."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from treadle.planner.documents.scalars import format_bytes, format_time
from treadle.report.svg import PALETTE, HoverArea, bytes_unit, figure, text_of


@dataclass(frozen=True)
class Tradeoff:
    """One plan: its budget and peak in bytes, its time and the lower bound of any plan within the budget in ns."""

    budget_bytes: int
    peak_bytes: int
    time_ns: int
    bound_ns: int


def undominated(points: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """(bytes, ns) without those that another beats in one and meets in the other, fewest bytes first."""
    best: list[tuple[int, int]] = []
    for size, time in sorted(points):
        if not best or time < best[-1][1]:
            best.append((size, time))
    return best


def pareto_svg(
    plans: Sequence[Tradeoff],
    peers: Mapping[str, Sequence[tuple[int, int]]],
    *,
    store_all: tuple[int, int],
    infeasible_bytes: int | None = None,
) -> str:
    """SVG of time in per cent over `store_all`'s, by bytes.

    plans: at least one. A plan holds from its peak on and its bound up to its budget, so the area between the two lines
    is what is not known. peers: (peak in bytes, time in ns) by label. store_all: the same of the step that keeps
    everything. infeasible_bytes: nothing fits in so little.
    """
    ordered = sorted(plans, key=lambda plan: plan.budget_bytes)
    unit, name = bytes_unit(store_all[0])

    def more(ns: int) -> float:
        return (ns / max(1, store_all[1]) - 1) * 100

    others = [peak for reached in peers.values() for peak, _ in reached]
    right = max(store_all[0], ordered[-1].budget_bytes, *others) * 1.02 / unit
    best = undominated((plan.peak_bytes, plan.time_ns) for plan in plans)
    with figure(10, 4.4) as (drawn, axes):
        axes.step(
            [*(peak / unit for peak, _ in best), right],
            [more(time) for _, time in (*best, best[-1])],
            where="post",
            color=PALETTE[0],
            linewidth=1.2,
        )
        axes.plot(
            [peak / unit for peak, _ in best], [more(time) for _, time in best], "o", color=PALETTE[0], label="plans"
        )
        axes.step(
            [(infeasible_bytes or 0) / unit, *(plan.budget_bytes / unit for plan in ordered)],
            [more(plan.bound_ns) for plan in (ordered[0], *ordered)],
            "_--",
            where="pre",
            color="#57606a",
            linewidth=1.2,
            label="lower bound",
        )
        for style, colour, (label, reached) in zip("sD^v", PALETTE[1:], peers.items(), strict=False):
            axes.plot([peak / unit for peak, _ in reached], [more(time) for _, time in reached], style + ":",
                      color=colour, markersize=4, linewidth=0.8, label=label)  # fmt: skip
        axes.plot([store_all[0] / unit], [0], "*", color="#1b1f24", markersize=11, label="everything kept")
        if infeasible_bytes is not None:
            axes.axvspan(0, infeasible_bytes / unit, color="#eef1f4", zorder=0, label="nothing fits")
        axes.grid(axis="y", color="#eef1f4")
        axes.set(
            xlabel=f"peak of live tensor bytes ({name})",
            ylabel="more time than keeping everything (%)",
            xlim=(0, right),
        )
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
        marks: dict[str, Sequence[tuple[int, int]]] = {
            f"plan for {format_bytes(plan.budget_bytes)}": [(plan.peak_bytes, plan.time_ns)] for plan in ordered
        }
        marks |= {**peers, "everything kept": [store_all]}
        areas = [
            HoverArea(
                peak / unit,
                peak / unit,
                f"{label}\npeak {format_bytes(peak)}\n{format_time(time)}, {more(time):+.2f}%",
                more(time),
                more(time),
                5,
            )
            for label, reached in marks.items()
            for peak, time in reached
        ]
        return text_of(drawn, [(axes, areas)])
