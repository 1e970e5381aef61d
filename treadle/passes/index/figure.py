"""Pictures of an index plan: predictions and measurements of all configurations, and throughput along the trace."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from treadle.passes.index.words import RankedLeaves, ranked
from treadle.planner.passes.index.configurations import GappedArray
from treadle.planner.passes.index.decisions import IndexDecisions
from treadle.planner.passes.index.problem import IndexProblem
from treadle.report.svg import HoverArea, figure, text_of

COLOURS = {"gapped arrays": "#0072B2", "fragmented logs": "#E69F00"}
CHOSEN = "#1b1f24"
OTHER = "#8c959f"
TICKS = (1, 2, 3, 5, 10, 20, 30, 50, 100)


def kind_of_leaves(each: RankedLeaves) -> str:
    return "gapped arrays" if isinstance(each.candidate.configuration, GappedArray) else "fragmented logs"


def ranking_svg(decisions: IndexDecisions) -> str:
    """SVG of ns an operation over the rank of the prediction: predicted as dots, measured as diamonds above or below
    them."""
    problem, found = decisions.problem, ranked(decisions.problem)
    with figure(8, 3.4) as (drawn, axes):
        for kind, colour in COLOURS.items():
            own = [each for each in found if kind_of_leaves(each) == kind]
            if not own:
                continue
            predicted = [each.candidate.predicted_ns / problem.operations for each in own]
            axes.scatter([each.rank for each in own], predicted, s=9, color=colour, label=f"{kind}, predicted")
            timed = [each for each in own if each.measured_ns is not None]
            for each in timed:
                ends = (each.candidate.predicted_ns / problem.operations, _measured(problem, each))
                axes.plot([each.rank, each.rank], ends, color=colour, linewidth=0.8)
            if timed:
                places, times = [each.rank for each in timed], [_measured(problem, each) for each in timed]
                axes.scatter(places, times, s=28, marker="D", color=colour, label=f"{kind}, measured")
        chosen = next(each for each in found if each.candidate.configuration == decisions.chosen)
        height = decisions.time_ns / problem.operations
        ring = {"facecolors": "none", "edgecolors": CHOSEN, "linewidths": 1.4}
        axes.scatter([chosen.rank], [height], s=110, label=f"chosen: {chosen.name}", **ring)
        last = len(found)
        axes.set(xlabel="rank of the prediction", ylabel="ns an operation", xscale="log", xlim=(0.9, 1.1 * last + 0.1))
        ticks = [each for each in TICKS if each <= last]
        axes.set_xticks(ticks, map(str, ticks))
        axes.set_xticks([], minor=True)
        axes.set_ylim(bottom=0)
        axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1), frameon=False)
        areas = [HoverArea(each.rank - 0.5, each.rank + 0.5, _said(problem, each)) for each in found]
        return text_of(drawn, [(axes, areas)])


def windows_svg(decisions: IndexDecisions) -> str:
    """SVG of the throughput of each measured configuration over the windows of the trace, the chosen one on top."""
    problem = decisions.problem
    timed = [each for each in ranked(problem) if each.candidate.measured is not None]
    with figure(8, 3) as (drawn, axes):
        rates: dict[str, list[float]] = {}
        for each in sorted(timed, key=lambda each: each.candidate.configuration == decisions.chosen):
            rates[each.name] = rate = [*_rates(problem, each)]
            edges = [*window_edges(problem.operations, len(rate))]
            chosen = each.candidate.configuration == decisions.chosen
            look = {"color": CHOSEN, "linewidth": 2.2} if chosen else {"color": OTHER, "linewidth": 0.9}
            label = f"chosen: {each.name}" if chosen else "others measured" if len(rates) == 1 else None
            axes.stairs(rate, edges, baseline=None, label=label, **look)
        axes.set(xlabel="operations of the trace", ylabel="million operations/s", xlim=(0, problem.operations))
        axes.locator_params(axis="x", nbins=5)
        axes.set_ylim(bottom=0)
        axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1), frameon=False)
        return text_of(drawn, [(axes, [*_window_areas(problem, rates)])])


def window_edges(operations: int, windows: int) -> Iterator[float]:
    """Where the equal parts of the trace begin and end."""
    yield from accumulate([operations / windows] * windows, initial=0.0)


def _rates(problem: IndexProblem, each: RankedLeaves) -> Iterator[float]:
    """Million operations per second in each window."""
    measured = each.candidate.measured
    for time in measured.windows_ns if measured is not None else ():
        yield problem.operations / len(measured.windows_ns) / time * 1e3 if measured is not None else 0.0


def _window_areas(problem: IndexProblem, rates: dict[str, list[float]]) -> Iterator[HoverArea]:
    """For each window of those with the most of them, the rate of every configuration."""
    windows = max(map(len, rates.values()))
    edges = [*window_edges(problem.operations, windows)]
    for place in range(windows):
        said = [f"{name}: {rate[place]:.3g} million/s" for name, rate in rates.items() if len(rate) == windows]
        yield HoverArea(edges[place], edges[place + 1], "\n".join(reversed(said)))


def _measured(problem: IndexProblem, each: RankedLeaves) -> float:
    """ns an operation."""
    return (each.measured_ns or 0) / problem.operations


def _said(problem: IndexProblem, each: RankedLeaves) -> str:
    """What one who points at a rank reads."""
    text = f"{each.rank}: {each.name}\npredicted {each.candidate.predicted_ns / problem.operations:.4g} ns"
    return text if each.measured_ns is None else f"{text}\nmeasured {_measured(problem, each):.4g} ns"
