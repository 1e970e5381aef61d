"""Pictures of sparse gradients: how sums fill up, how uneven even ranges are, overlap, and where non-zero units lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from treadle.planner.documents.scalars import many
from treadle.planner.documents.sparsity import Sparsity, TensorSparsity
from treadle.report.page import Page, Picture, Section, Table
from treadle.report.svg import PALETTE, HoverArea, styled, text_of

BEFORE, AFTER, GREY = PALETTE[0], PALETTE[5], "#8a8f98"
MOST_DRAWN = 12
"""Tensors in one picture; a page has all of them, up to MOST_ON_PAGE."""
MOST_ON_PAGE = 200
CAPTION = (
    "Densities of sums over participants, between those of equal sets and of sets without overlap; the fullest of even "
    "ranges against the mean, of one participant and of the sum over as many as there are ranges; overlap of pairs; "
    "where non-zero units lie."
)
Areas = list[tuple[Any, list[HoverArea]]]


def sparsity_svg(tensors: Sequence[TensorSparsity]) -> str:
    """SVG of four panels for each tensor."""
    with styled(figsize=(13, 0.35 + 2.75 * len(tensors)), layout="constrained") as drawn:
        areas: Areas = []
        for figure, tensor in zip(np.atleast_1d(drawn.subfigures(len(tensors), 1)), tensors, strict=True):
            figure.suptitle(title_of(tensor), fontsize=10, fontweight="bold", x=0.008, ha="left")
            panels = figure.subplots(1, 4, width_ratios=(1, 1, 0.8, 1.2))
            for draw, axes in zip((_densities, _skew, _overlap, _where), panels, strict=True):
                areas.append((axes, draw(axes, tensor)))
        return text_of(drawn, areas)


def title_of(tensor: TensorSparsity) -> str:
    """A tensor's name, shortened, and its size."""
    name = tensor.name if len(tensor.name) <= 60 else f"{tensor.name[:28]}...{tensor.name[-29:]}"
    of = f" of {tensor.width:,} elements" if tensor.width > 1 else ""
    return f"{name}: {many(tensor.units, tensor.unit)}{of}, {tensor.form} gradient, {many(tensor.sets, 'index set')}"


def drawn_tensors(sparsity: Sparsity, most: int = MOST_DRAWN) -> list[TensorSparsity]:
    """The largest tensors, in the order of the document."""
    largest = sorted(
        range(len(sparsity.tensors)), key=lambda at: -sparsity.tensors[at].units * sparsity.tensors[at].width
    )
    return [sparsity.tensors[place] for place in sorted(largest[:most])]


def sparsity_page(sparsity: Sparsity, tables: Sequence[Table]) -> Page:
    """A page with `tables` of all tensors, and a section with a picture for each of the largest."""
    shown = drawn_tensors(sparsity, MOST_ON_PAGE)
    text = "A unit is an element or a row of a gradient. A participant is a machine, or a rank of its own."
    if len(shown) < len(sparsity.tensors):
        text += f" Below are pictures of the {len(shown)} largest of {len(sparsity.tensors)} tensors."
    sections = [Section("All tensors", text, tuple(tables))]
    sections += [
        Section(tensor.name, title_of(tensor), pictures=(Picture(sparsity_svg([tensor]), CAPTION),)) for tensor in shown
    ]
    subtitle = f"{many(sparsity.ranks, 'rank')}, {many(sparsity.steps, 'step')}"
    return Page(f"Sparse gradients of {sparsity.name}", subtitle, sections=tuple(sections))


def _densities(axes: Any, tensor: TensorSparsity) -> list[HoverArea]:
    counts = [each.participants for each in tensor.unions]
    shares = [100 * each.mean / tensor.units for each in tensor.unions]
    if len(counts) > 1:
        apart = [min(100.0, shares[0] * count) for count in counts]
        axes.fill_between(counts, [shares[0]] * len(counts), apart, color="#eef2f6", linewidth=0)
        axes.plot(counts, apart, color=GREY, linewidth=0.8, linestyle=":", label="without overlap")
    axes.plot(counts, shares, color=BEFORE, marker="o", markersize=3.5, label="mean")
    most = [100 * each.most / tensor.units for each in tensor.unions]
    axes.plot(counts, most, color=BEFORE, linewidth=0.7, linestyle="--", label="most")
    _by_doubling(axes, counts)
    top = max([*most, 1e-6])
    axes.legend(frameon=False, fontsize=7, loc="upper left", handlelength=1.5)
    axes.set(title="density of the sum", xlabel="participants", ylabel="non-zero units (%)", ylim=(0, 1.35 * top))
    first = tensor.unions[0].mean
    return [
        HoverArea(
            *(count, count, f"{count} participants: {share:.3g}%, at most {100 * each.most / tensor.units:.3g}%"
              + (f", {each.mean / first:.3g} times that of one" if first else "")),
            *(share, share, 5.0),
        )
        for count, share, each in zip(counts, shares, tensor.unions, strict=True)
    ]  # fmt: skip


def skews(tensor: TensorSparsity) -> list[tuple[int, float | None, float | None]]:
    """Number of ranges, and the fullest against the mean: of one participant, and of the sum of as many as there are
    ranges, or of the next fewer; None where nothing is known."""
    means = {each.participants: each.mean for each in tensor.unions}
    by_parts: dict[int, dict[int, int]] = {}
    for each in tensor.fullest:
        by_parts.setdefault(each.parts, {})[each.participants] = each.mean

    def skew(parts: int, participants: int) -> float | None:
        fullest, mean = by_parts[parts].get(participants), means.get(participants)
        return None if fullest is None or not mean else fullest * parts / mean

    return [(parts, skew(parts, 1), skew(parts, max(by_parts[parts]))) for parts in sorted(by_parts)]


def _skew(axes: Any, tensor: TensorSparsity) -> list[HoverArea]:
    areas, found = [], skews(tensor)
    for place, (name, colour) in enumerate((("of one participant", BEFORE), ("of the sum", AFTER)), 1):
        line = [(row[0], row[place]) for row in found if row[place] is not None]
        axes.plot([x for x, _ in line], [y for _, y in line], color=colour, marker="o", markersize=3.5, label=name)
        areas += [HoverArea(x, x, f"{x} ranges: {y:.3g} times the mean, {name}", y, y, 5.0) for x, y in line]
    _by_doubling(axes, [row[0] for row in found])
    axes.axhline(1, color=GREY, linewidth=0.8, linestyle=":")
    top = max([1.0, *(each for row in found for each in row[1:] if each is not None)])
    axes.set(title="fullest even range", xlabel="ranges", ylabel="times the mean", ylim=(0, 1.3 * top))
    if found:
        axes.legend(frameon=False, fontsize=7, loc="upper left", ncols=2, columnspacing=1, handlelength=1.2)
    return areas


def _overlap(axes: Any, tensor: TensorSparsity) -> list[HoverArea]:
    shared = tensor.shared
    axes.set(title="overlap of two", xlabel="share of the smaller set (%)", ylabel="pairs", xlim=(0, 100))
    if shared is None:
        axes.text(50, 0.5, "a single set", ha="center", va="center", color=GREY)
        axes.set(ylim=(0, 1), yticks=[])
        return []
    areas, bins = [], max(1, len(shared.counts))
    for place, count in enumerate(shared.counts):
        left, right = 100 * place / bins, 100 * (place + 1) / bins
        axes.bar((left + right) / 2, count, width=(right - left) * 0.92, color=BEFORE)
        areas.append(HoverArea(left, right, f"{left:.3g} to {right:.3g}%: {many(count, 'pair')}"))
    top = max([1, *shared.counts])
    axes.axvline(100 * shared.mean, color=AFTER, linewidth=1)
    text = f"{100 * shared.mean:.3g} ± {100 * shared.deviation:.2g}%"
    right = shared.mean > 0.5
    axes.annotate(text, (100 * shared.mean, 1.12 * top), (-3 if right else 3, 0), textcoords="offset points",
                  ha="right" if right else "left", fontsize=7.5, color=AFTER)  # fmt: skip
    axes.set(ylim=(0, 1.25 * top))
    axes.yaxis.get_major_locator().set_params(integer=True)
    return areas


def _where(axes: Any, tensor: TensorSparsity) -> list[HoverArea]:
    axes.set(title="where non-zero units lie", xlabel=f"place among the {tensor.unit}s (%)", xlim=(0, 100))
    if not tensor.places:
        axes.text(50, 0.5, "not recorded", ha="center", va="center", color=GREY)
        axes.set(ylim=(0, 1), yticks=[])
        return []
    rows = [each for each in tensor.places if each.counts]
    areas = []
    for row, each in enumerate(rows):
        ranges = len(each.counts)
        densities = [count * ranges / tensor.units for count in each.counts]
        top = max([*densities, 1e-12])
        edges = np.linspace(0, 100, ranges + 1)
        axes.pcolormesh(edges, [row - 0.42, row + 0.42], [densities], cmap="Blues", vmin=0, vmax=top)
        for place, density in enumerate(densities):
            left, right = 100 * place / ranges, 100 * (place + 1) / ranges
            text = f"{_of(each.participants)}, {left:.3g} to {right:.3g}%: density {100 * density:.3g}%"
            areas.append(HoverArea(left, right, text, row - 0.42, row + 0.42))
    axes.set_yticks(range(len(rows)), [_of(each.participants) for each in rows], fontsize=7.5)
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlim=(0, 100))
    axes.tick_params(axis="y", length=0)
    return areas


def _of(participants: int) -> str:
    return "one" if participants == 1 else f"sum of {participants}"


def _by_doubling(axes: Any, ticks: Sequence[int]) -> None:
    """An axis of doublings with these ticks, as many as there is space for."""
    if not ticks:
        return
    axes.set_xscale("log", base=2)
    shown = [tick for tick in ticks if tick & (tick - 1) == 0 or tick == ticks[-1]]
    if len(shown) > 1 and shown[-1] < 1.6 * shown[-2]:
        del shown[-2]
    axes.set_xticks(shown, [str(tick) for tick in shown])
    axes.minorticks_off()
    axes.set_xlim(min(ticks) / 1.15, max(ticks) * 1.15)
