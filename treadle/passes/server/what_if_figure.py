"""Throughput against an amount of parts: what plans reach, and what each kind of part would allow."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.passes.server.words import value_of
from treadle.planner.passes.server.balance import bottleneck
from treadle.planner.passes.server.what_if import WhatIf, WhatIfAnswer
from treadle.report.svg import PALETTE, HoverArea, figure, text_of

REACHED = "#1b1f24"
CUT = 2.0
"""The axis ends at this many times of the best throughput, so that limits close to each other remain distinct."""


def what_if_svg(asked: WhatIf, answers: Sequence[WhatIfAnswer]) -> str:
    """SVG of exchanges per second over the values of `asked`."""
    places = range(len(answers))
    kinds = list(dict.fromkeys(limit.kind for answer in answers for limit in answer.limits))
    reached = [answer.exchanges_per_s for answer in answers]
    top = CUT * max(reached)
    with figure(8, 4) as (drawn, axes):
        for kind, colour in zip(kinds, PALETTE * (1 + len(kinds) // len(PALETTE)), strict=False):
            allowed = [_limit(answer, kind) for answer in answers]
            if any(rate is not None and rate <= top for rate in allowed):
                shown = [float("nan") if rate is None else rate for rate in allowed]
                axes.plot(places, shown, color=colour, linewidth=1.2, linestyle="--", label=kind)
        axes.plot(places, reached, color=REACHED, linewidth=2, marker="o", label="reached")
        axes.set_xticks(places, [value_of(asked, answer.value) for answer in answers])
        axes.tick_params(axis="x", labelrotation=45 if len(answers) > 12 else 0)
        axes.set(xlabel=asked.name, ylabel="exchanges/s of all workers", ylim=(0, top), xlim=(-0.3, len(answers) - 0.7))
        axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1), frameon=False)
        areas = [HoverArea(place - 0.5, place + 0.5, _said(asked, answer)) for place, answer in enumerate(answers)]
        return text_of(drawn, [(axes, areas)])


def _limit(answer: WhatIfAnswer, kind: str) -> float | None:
    return next((limit.exchanges_per_s for limit in answer.limits if limit.kind == kind), None)


def _said(asked: WhatIf, answer: WhatIfAnswer) -> str:
    """What one who points at a value reads."""
    slowest = bottleneck(answer.decisions)
    name = "" if slowest is None else f", bottleneck {slowest.part}"
    others = "\n".join(f"{limit.kind} {limit.exchanges_per_s:.4g}" for limit in answer.limits)
    return f"{asked.name} {value_of(asked, answer.value)}: {answer.exchanges_per_s:.4g} exchanges/s{name}\n{others}"
