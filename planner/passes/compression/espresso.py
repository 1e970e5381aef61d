"""The method `espresso`: an option for each gradient, on the device first, then on the host.

"Hi-Speed DNN Training with Espresso: Unleashing the Full Potential of Gradient Compression with Near-Optimal Usage
Strategies", section 4.7.

In the published form algorithms 4.1 and 4.2 run once, with one compressor. Otherwise all compressors and all
uncompressed options are candidates, any subset may move to the host, gradients that are still uncompressed are tried on
the host (the published algorithms never do that), and no baseline is better than the result.
"""

from __future__ import annotations

from dataclasses import dataclass

from treadle.planner.passes.compression.baselines import baselines
from treadle.planner.passes.compression.decided import plain_groups
from treadle.planner.passes.compression.decisions import Groups
from treadle.planner.passes.compression.espresso_device import (
    greedily,
    options_on,
    published_options,
)
from treadle.planner.passes.compression.espresso_host import FEW_CHOICES, MOST_CHOICES, any_subset, offload
from treadle.planner.passes.compression.evaluator import Evaluator
from treadle.planner.search.clock import Expired, never


@dataclass(frozen=True)
class EspressoResult:
    """Groups with their time, and how they came about.

    evaluations: timelines that were asked for. before_bubbles: gradients that a bubble left uncompressed. compressed:
    those that algorithm 4.1 compressed. choices: how many algorithm 4.2 tried; these are all if `whole`. baseline: the
    one that is better than the algorithms, if any.
    """

    groups: Groups
    ns: int
    evaluations: int
    before_bubbles: int
    compressed: int
    choices: int
    whole: bool
    baseline: str | None = None


def espresso(
    evaluator: Evaluator,
    *,
    as_published: bool = False,
    compressor: str | None = None,
    bubble_pruning: bool = True,
    expired: Expired = never,
) -> EspressoResult:
    """An option for each gradient. Once `expired`, what has been found so far. compressor: that of the published form,
    by default the first of the problem."""
    problem = evaluator.problem
    before = evaluator.evaluations
    start = plain_groups(problem)
    options = published_options(problem, compressor) if as_published else options_on(problem, "device")
    device = greedily(evaluator, start, options, bubble_pruning=bubble_pruning, expired=expired)
    most = MOST_CHOICES if as_published else FEW_CHOICES
    host = offload(evaluator, device.groups, most=most, expired=expired)
    groups, ns, better = host.groups, host.ns, None
    if not as_published:
        groups = any_subset(evaluator, device.groups, groups, expired=expired)
        last = greedily(
            evaluator,
            groups,
            options_on(problem, "host"),
            bubble_pruning=False,
            only=lambda group: group.compressor is None,
            expired=expired,
        )
        groups, ns = last.groups, last.ns
        for compressor in problem.names or (None,):
            for name, other in baselines(evaluator, compressor, expired=expired).items():
                found = evaluator.time(other, ns)
                if found < ns:
                    groups, ns, better = other, found, f"{name}, {compressor}" if compressor else name
    return EspressoResult(
        groups,
        ns,
        evaluator.evaluations - before,
        device.before_bubbles,
        sum(group.compressor is not None for group in device.groups),
        host.tried,
        host.whole,
        better,
    )
