"""Time over size on logarithmic axes: what a selection predicts in each of its ranges, with the bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treadle.planner.documents.scalars import format_bytes
from treadle.report.svg import PALETTE, HoverArea, figure, text_of

POINTS = 24


@dataclass(frozen=True)
class SizeRange:
    """Bytes of one range and the us at both ends: predicted, bound, and simulated where it is known."""

    label: str
    bytes: tuple[int, int]
    predicted_us: tuple[float, float]
    bound_us: tuple[float, float]
    simulated_us: tuple[float, float] | None


def sizes_svg(ranges: Sequence[SizeRange]) -> str:
    """SVG of `ranges`, ascending and without holes; a thin line at every switch-over, a colour for every label.

    Between its ends a range's time is drawn as linear in the bytes, which is what alpha-beta costs come to.
    """
    colours = dict(zip(dict.fromkeys(one.label for one in ranges), PALETTE * len(ranges), strict=False))
    with figure(10, 4.6) as (drawn, axes):
        for style, name, colour in ((":", "simulated, as a program", "#1b1f24"), ("--", "lower bound", "#57606a")):
            axes.plot([], [], style, color=colour, linewidth=1.2, label=name)
        for one in ranges:
            axes.plot(*_curve(one.bytes, one.bound_us), "--", color="#57606a", linewidth=1.2)
            if one.simulated_us is not None:
                axes.plot(*_curve(one.bytes, one.simulated_us), ":", color=colours[one.label], linewidth=1.6)
            axes.plot(*_curve(one.bytes, one.predicted_us), color=colours[one.label], linewidth=2)
        for label, colour in colours.items():
            axes.plot([], [], color=colour, linewidth=2, label=label)
        for one in ranges[1:]:
            axes.axvline(one.bytes[0], color="#d8dee4", linewidth=1, zorder=0)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        first, last = ranges[0].bytes[0], ranges[-1].bytes[1]
        powers = [2**power for power in range(first.bit_length() - 1, last.bit_length() + 1)]
        shown = [size for size in powers if first <= size <= last][:: -(-len(powers) // 10)]
        axes.set_xticks(shown, [format_bytes(size) for size in shown])
        axes.yaxis.get_major_locator().set_params(subs=(1, 2, 5))
        axes.yaxis.set_major_formatter(lambda time, _: f"{time:g}")
        axes.minorticks_off()
        axes.grid(axis="y", color="#eef1f4")
        axes.set(xlabel="input of one rank", ylabel="time (us)")
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
        return text_of(drawn, [(axes, [area for one in ranges for area in _areas(one)])])


def _areas(one: SizeRange) -> list[HoverArea]:
    """Spots side by side over a range, with its times at their sizes."""
    curves = {"planned": one.predicted_us, "simulated": one.simulated_us, "lower bound": one.bound_us}
    times = {name: _curve(one.bytes, ends) for name, ends in curves.items() if ends is not None}
    sizes = next(iter(times.values()))[0]
    areas = []
    for place, size in enumerate(sizes):
        lines = [f"{name}: {found[place]:,.4g} us" for name, (_, found) in times.items()]
        left = (sizes[max(0, place - 1)] * size) ** 0.5
        right = (sizes[min(len(sizes) - 1, place + 1)] * size) ** 0.5
        areas.append(HoverArea(left, right, "\n".join((f"{one.label}, {format_bytes(round(size))}", *lines))))
    return areas


def _curve(ends: tuple[int, int], times: tuple[float, float]) -> tuple[list[float], list[float]]:
    low, high = ends
    sizes = [low * (high / low) ** (k / POINTS) for k in range(POINTS + 1)] if high > low else [float(low)]
    slope = (times[1] - times[0]) / max(1, high - low)
    return sizes, [times[0] + slope * (size - low) for size in sizes]
