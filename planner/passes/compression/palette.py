"""A few options out of thousands: those that are best for some size and some price of each resource.

Along the lower hull of what options take of device, host and links every price of these resources has its best option.
A coarse grid of prices at a few sizes finds it but for options that are best at prices in between.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from treadle.planner.passes.compression.candidates import PLANNED, Named, PricedOption, inter_allgather, places_of
from treadle.planner.passes.compression.decided import plain_option
from treadle.planner.passes.compression.evaluator import Evaluator
from treadle.planner.passes.compression.problem import CompressionProblem
from treadle.planner.search.clock import Expired, never

RESOURCES = ("device", "host", "intra", "inter")
PRICES = (0, 1, 4)
"""Prices of a ns of each resource; each step's time costs ROW on top."""
ROW = 0.25
SIZES = 4
"""Sizes at which options are compared."""
MOST = 32
"""Options that are kept: those that are best most often."""


def palette(problem: CompressionProblem, evaluator: Evaluator, stopped: Expired = never) -> tuple[Named, ...]:
    """The options that a search chooses from for any group, those that compress nothing first; of fewer sizes if it is
    `stopped`."""
    wins: dict[Named, int] = {}
    weights = np.array([prices for prices in product(PRICES, repeat=len(RESOURCES)) if any(prices)], np.float64)
    for elements in representative(problem):
        if stopped():
            break
        found = evaluator.candidates(elements)
        taken = np.array([_taken(option) for option in found], np.float64)
        cost = taken[:, :-1] @ weights.T + ROW * taken[:, -1:]
        for winner in cost.argmin(0).tolist():
            option = found[winner]
            key = option.compressor, option.steps
            wins[key] = wins.get(key, 0) + 1
    ranked = sorted(wins, key=lambda named: -wins[named])[:MOST]
    known: list[Named] = [(None, plain_option(problem))]
    if problem.planned is not None:
        known.append((None, PLANNED))
    if problem.compressions != 0:
        known += [(name, inter_allgather(problem, places_of(problem, name)[0])) for name in problem.names]
    return tuple(sorted({*ranked, *known}, key=lambda named: (named[0] is not None, named[0] or "", named[1])))


def representative(problem: CompressionProblem) -> list[int]:
    """A few sizes of groups, from the median gradient to all of them, in equal ratios."""
    sizes = sorted(gradient.elements for gradient in problem.gradients)
    least, most = sizes[len(sizes) // 2], sum(sizes)
    found, size = {least, most}, most
    for _ in range(SIZES - 2):
        size = max(least, size // max(2, round((most / least) ** (1 / (SIZES - 1)))))
        found.add(size)
    return sorted(found)


def _taken(option: PricedOption) -> list[int]:
    """ns of each resource, and of all steps in a row."""
    found, row = dict.fromkeys(RESOURCES, 0), 0
    for work in option.works:
        row += work.ns
        for name in work.resources:
            found[name] += work.ns
    return [*found.values(), row]
