"""Memory over time against the budget, stacked by category."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

from treadle.report.levels import level_areas
from treadle.report.svg import PALETTE, bytes_unit, figure, text_of, time_unit

# The same category has the same colour on every page; others, whose names and number are free, take OTHERS in turn.
COLOURS = dict(
    zip(
        ("parameters", "inputs", "buffers", "activations", "live_gradients", "recomputed", "workspace"),
        PALETTE,
        strict=False,
    )
)
OTHERS = (PALETTE[-1], "#882255", "#444444", "#44AA99")
LABELS = {"activations": "activations, first run", "recomputed": "activations, recomputed"}


def memory_svg(
    points: Sequence[tuple[int, Mapping[str, int]]],
    *,
    budget_bytes: int,
    store_all_peak_bytes: int,
    forward_ends_ns: int,
    measured: Mapping[str, int],
) -> str:
    """SVG of a memory curve.

    points: (time in ns, bytes by category) after each instruction, in time order; every point names the same
    categories, drawn from the bottom in the order of the first point. measured: bytes by label, drawn as lines.
    """
    scale, unit_of_time = time_unit(points[-1][0] / 1e3)
    scale *= 1e3
    times = [time / scale for time, _ in points]
    top = max(budget_bytes, store_all_peak_bytes, *measured.values())
    unit, name_of_unit = bytes_unit(top)
    categories = list(points[0][1])
    names = {name: LABELS.get(name, name.replace("_", " ")) for name in categories}
    others = cycle(OTHERS)
    with figure(10, 3.6) as (drawn, axes):
        axes.stackplot(
            times,
            [[level[name] / unit for _, level in points] for name in categories],
            labels=[names[name] for name in categories],
            colors=[COLOURS.get(name) or next(others) for name in categories],
            step="post",
            linewidth=0,
        )
        axes.axhline(budget_bytes / unit, color="#000000", linewidth=1.6, label="budget")
        axes.axhline(
            store_all_peak_bytes / unit, color="#000000", linewidth=1, linestyle=":", label="peak, everything kept"
        )
        for style, (label, level) in zip(("--", "-."), measured.items(), strict=False):
            axes.axhline(level / unit, color="#B00020", linewidth=1.2, linestyle=style, label=label)
        axes.axvline(forward_ends_ns / scale, color="#666666", linewidth=0.8)
        axes.annotate(
            " backward starts",
            (forward_ends_ns / scale, 1.0),
            xycoords=("data", "axes fraction"),
            verticalalignment="bottom",
            fontsize=8,
        )
        axes.set(
            xlabel=f"predicted time ({unit_of_time})",
            ylabel=f"live tensor bytes ({name_of_unit})",
            xlim=(0, times[-1]),
            ylim=(0, None),
        )
        handles, labels = axes.get_legend_handles_labels()
        order = [*reversed(range(len(categories))), *range(len(categories), len(labels))]
        axes.legend(
            [handles[place] for place in order],
            [labels[place] for place in order],
            loc="upper left",
            bbox_to_anchor=(1.01, 1),
            frameon=False,
        )
        areas = level_areas([(time / scale, level) for time, level in points], scale, names)
        return text_of(drawn, [(axes, areas)])
