"""Lower bounds that hold for every plan of a problem: any groups, options and compressors.

tail. The last gradient is ready when the whole backward pass has ended, and the steps of its group come after it in a
row. A group has at least the elements of that gradient, and with the costs of least_costs.py no option takes less for
more elements.

work. Let R be the time at which gradient i is ready if nothing delays the backward pass, and M the elements of the
gradients from i on. Each of these is in a group of which all steps come after R. On a resource r let v_r(o, n) be what
option o takes for n elements by the costs of least_costs.py. The groups have M elements or more together, one group of
M takes no more than they do, and no resource works at two things at once. So for any weights w >= 0 with sum 1

    time - forward >= R + w_device (backward - R) + min over o of sum over r of w_r v_r(o, M)

where the host counts by its workers. The minimum over options is taken over all of them; the weights are searched for,
since any are valid. What rounding may lose is taken off: MARGIN of the work for the steps of one group of M, and for
each group of a plan a few ns and bytes a step. Gradients so small that the steps of their payloads matter are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from treadle.planner.machine.compressors import compressor
from treadle.planner.passes.compression.candidates import Named, named_options
from treadle.planner.passes.compression.least_costs import least_costs
from treadle.planner.passes.compression.payload import MB, Prices
from treadle.planner.passes.compression.problem import CompressionProblem
from treadle.planner.search.bound import Argument, Bound
from treadle.planner.search.clock import Expired, never

RESOURCES = ("device", "host", "intra", "inter")
PARTS = 64
"""Weights are multiples of 1 / PARTS."""
MARGIN = 500
"""The work of one large group is taken to be 1 / MARGIN less, for its rounding."""
STEPS = 14
"""The most steps of an option, with room."""
KEPT = (64, 16, 4)
"""Elements that a shard's payload keeps at least, for a gradient to be counted; most first."""
LARGE = 0.95
"""Share of all elements that the counted gradients should have."""
SEARCHED = "a search of all groups and options"
SENTENCES = {
    "compute": "the backward pass takes {backward} ns, and all else on the same device {forward} ns",
    "tail": (
        "the backward pass takes {backward} ns, all else on the same device {forward} ns, and the fastest option for "
        "the last gradient, which is ready only then, {tail} ns"
    ),
    "work": (
        "all else takes {forward} ns; from {before} ns of the backward pass on, when gradient {first} is ready, large "
        "gradients of {elements} elements are still to be exchanged; with the device weighted {device}, the host "
        "{host}, the links inside {intra} and between nodes {inter} of {parts}, what the backward pass and the "
        "cheapest option for all of them take of each adds up to {compute} ns and {exchange} ns"
    ),
    "search": SEARCHED + ", cut by the work that is left, looked at {nodes} prefixes",
}


def sentence(bound: Bound) -> str:
    """Why `bound` holds, in words."""
    return bound.argument.printed(SENTENCES)


def compute(problem: CompressionProblem) -> Bound:
    """The bound without any exchange."""
    terms = {"forward": problem.forward_ns, "backward": problem.backward_ns}
    return Bound(sum(terms.values()), Argument("compute", terms))


def lower_bound(problem: CompressionProblem, stopped: Expired = never) -> Bound:
    """The largest of the bounds, of those that are derived before it is `stopped`."""
    best = compute(problem)
    for bound in _bounds(problem):
        best = max(best, bound, key=lambda bound: bound.time_ns)
        if stopped():
            break
    return best


def _bounds(problem: CompressionProblem) -> Iterator[Bound]:
    yield compute(problem)
    yield _tail(problem)
    yield from _work(problem)


def _tail(problem: CompressionProblem) -> Bound:
    elements = problem.gradients[-1].elements
    prices = Prices(least_costs(problem, max(1, elements // problem.ranks)), elements)
    tail = min(sum(work.ns for work in prices.works(*named)) for named in named_options(problem))
    terms = {"forward": problem.forward_ns, "backward": problem.backward_ns, "tail": tail}
    return Bound(sum(terms.values()), Argument("tail", terms))


def _work(problem: CompressionProblem) -> Iterator[Bound]:
    """Bounds from the first counted gradient, from half and from nine tenths of their elements on."""
    least = _counted_from(problem)
    counted = [place for place, gradient in enumerate(problem.gradients) if gradient.elements >= least]
    if not counted:
        return
    sums = list(accumulate(problem.gradients[place].elements for place in counted))
    starts = {next(at for at, total in enumerate(sums) if 10 * total >= part * sums[-1]) for part in (0, 5, 9)}
    relaxed = least_costs(problem, max(1, least // problem.ranks))
    for start in sorted(starts):
        first, elements = counted[start], sums[-1] - (sums[start - 1] if start else 0)
        bound = _from(problem, relaxed, first, elements, len(counted) - start)
        if bound is not None:
            yield bound


def _counted_from(problem: CompressionProblem) -> int:
    """The fewest elements of a gradient that is counted."""
    total = sum(gradient.elements for gradient in problem.gradients)
    known = [compressor(cost.name) for cost in problem.compressors if cost.wire is None]
    ratios = [each.parameter for each in known if each.algorithm.parameter == "ratio"]
    if not ratios:
        return 1
    for kept in KEPT:
        least = int(kept * problem.ranks / min(ratios)) + 1
        if sum(each.elements for each in problem.gradients if each.elements >= least) >= LARGE * total:
            return least
    return 1


def _from(
    problem: CompressionProblem, relaxed: CompressionProblem, first: int, elements: int, groups: int
) -> Bound | None:
    """The bound from gradient `first` on, of which at most `groups` groups with `elements` in all are counted; None
    where one group is too small for its rounding to be negligible."""
    shard = elements // problem.ranks
    wires = [cost.wire.at(shard) for cost in relaxed.compressors if cost.wire is not None]
    if min([shard, *wires]) < 2 * MARGIN:
        return None
    prices = Prices(relaxed, elements)
    vectors = np.array(sorted({_taken(prices, named) for named in named_options(problem)}))
    ready = sum(gradient.backward_ns for gradient in problem.gradients[: first + 1])
    left = problem.backward_ns - ready
    lost = groups * _rounding(problem)
    weights, _ = _best_weights(vectors, left)
    exchange = int((vectors @ weights).min())
    exchange = exchange // PARTS - exchange // (PARTS * MARGIN) - 1 - lost
    compute = int(weights[0]) * left // PARTS
    if exchange < 0:
        return None
    terms = {"forward": problem.forward_ns, "before": ready, "compute": compute, "exchange": exchange}
    shares = dict(zip(RESOURCES, weights.tolist(), strict=True))
    facts = {"first": first, "elements": elements, "parts": PARTS, **shares}
    return Bound(sum(terms.values()), Argument("work", terms, facts))


def _taken(prices: Prices, named: Named) -> tuple[int, ...]:
    """ns of each resource; of the host for each of its workers, rounded down."""
    found = dict.fromkeys(RESOURCES, 0)
    for work in prices.works(*named):
        for resource in work.resources:
            found[resource] += work.ns
    found["host"] //= prices.problem.host_workers
    return tuple(found.values())


def _rounding(problem: CompressionProblem) -> int:
    """ns that rounding to whole ns and bytes may take off the steps of one group: a few ns and two bytes on the
    slowest link, which all ranks of a node share, for each, and the rounding of one piece times all pieces."""
    slopes = [link.beta_us_per_MB * 1000 / MB for link in (problem.intra, problem.inter) if link is not None]
    byte = int(max(slopes, default=0.0)) + 1
    return STEPS * (2 + 4 * byte * problem.devices) + 8 * problem.ranks


def _best_weights(vectors: NDArray[np.int64], left: int) -> tuple[NDArray[np.int64], int]:
    """Weights, of PARTS in all, that a transfer between two of them cannot raise the bound of; and that times PARTS."""

    def value(weights: NDArray[np.int64]) -> int:
        return int(weights[0]) * left + int((vectors @ weights).min())

    starts = [np.eye(4, dtype=np.int64)[place] * PARTS for place in range(4)] + [np.full(4, PARTS // 4, np.int64)]
    best = max(starts, key=value)
    step = PARTS // 4
    while step:
        trials = [best + step * (np.eye(4, dtype=np.int64)[to] - np.eye(4, dtype=np.int64)[of])
                  for of in range(4) for to in range(4) if of != to and best[of] >= step]  # fmt: skip
        better = max(trials, key=value, default=best)
        if value(better) > value(best):
            best = better
        else:
            step //= 2
    return best, value(best)
