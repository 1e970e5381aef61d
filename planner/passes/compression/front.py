"""Groups and options together, from boundary to boundary: a dynamic program over a bounded front of states.

A state is what a prefix of groups leaves behind: when the stream of the backward pass, the host and both links are
free, the decodings that wait for the stream, and when the last group ends. Here groups are served in their order, which
the timeline does not promise, so the result is a start for a search and not a proof. At each boundary the states are
kept that none beats, of these WIDTH by what the rest would take at the rates of a known plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from treadle.planner.passes.compression.candidates import Named
from treadle.planner.passes.compression.decisions import GradientGroup, Groups
from treadle.planner.passes.compression.group_costs import Times
from treadle.planner.passes.compression.payload import Prices, StepWork, works_of
from treadle.planner.passes.compression.problem import CompressionProblem

WIDTH = 12
"""States that are kept at a boundary."""
BOUNDARIES = 64
"""Places at which groups may end, at most."""
STREAM, WAITING, WAITING_SINCE, HOST, INTRA, INTER, END = range(7)
COMPARED = (STREAM, HOST, INTRA, INTER, END)


class _Layer(NamedTuple):
    """The states at a boundary, [states, 7], with the layer, state and option that each comes from."""

    at: Times
    origin: Times


def through_boundaries(
    problem: CompressionProblem, known: Groups, palette: Sequence[Named], stopped: Callable[[], bool]
) -> Iterator[Groups]:
    """Good plans by the order of groups, the best first. known: a plan whose rates and ends are used."""
    ends = boundaries(problem, known)
    sizes = np.concatenate([[0], np.cumsum([gradient.elements for gradient in problem.gradients])])
    passed = np.concatenate([[0], np.cumsum([gradient.backward_ns for gradient in problem.gradients])])
    rates = _rates(problem, known)
    layers = [_Layer(np.zeros((1, 7), np.int64), np.zeros((1, 3), np.int64))]
    priced = _Prices(problem, palette)
    for place, end in enumerate(ends):
        if stopped():
            return
        parts, origins = [], []
        for before in range(place + 1):
            first = ends[before - 1] + 1 if before else 0
            if not problem.fits(first, end) or not len(layers[before].at):
                continue
            steps = priced(int(sizes[end + 1] - sizes[first]), end - first + 1)
            at = _after(layers[before].at, int(passed[end + 1] - passed[first]), steps)
            states, options = at.shape[:2]
            parts.append(at.reshape(-1, 7))
            grid = np.indices((states, options)).reshape(2, -1)
            origins.append(np.stack([np.full(states * options, before), *grid], 1))
        rest = np.array([passed[-1] - passed[end + 1], *((sizes[-1] - sizes[end + 1]) * rates)])
        layers.append(_kept(_Layer(np.concatenate(parts), np.concatenate(origins)), rest))
    for row in range(len(layers[-1].at)):
        yield _path(layers, ends, palette, row)


def boundaries(problem: CompressionProblem, known: Groups) -> list[int]:
    """Gradients at which groups may end: all if they are few, else those of `known`, others at equal numbers, and where
    the limit of bytes is met."""
    count = len(problem.gradients)
    if count <= BOUNDARIES:
        return list(range(count))
    own = {group.last for group in known[:: -(-len(known) // (BOUNDARIES // 2))]}
    even = {(number + 1) * count // (BOUNDARIES - len(own)) - 1 for number in range(BOUNDARIES - len(own))}
    ends, first = [], 0
    for end in sorted(own | even | {count - 1}):
        for last in range(first, end):
            if not problem.fits(first, last + 1):
                ends.append(last)
                first = last + 1
        ends.append(end)
        first = end + 1
    return ends


def _rates(problem: CompressionProblem, known: Groups) -> NDArray[np.float64]:
    """ns for an element that groups of a plan take of device, host, and both links."""
    taken = np.zeros(4)
    for group in known:
        for work in works_of(problem, group):
            for place, name in enumerate(("device", "host", "intra", "inter")):
                taken[place] += work.ns if name in work.resources else 0
    return taken / sum(gradient.elements for gradient in problem.gradients)


class _Prices:
    """The steps of all options on groups of one size: what each holds, [options, steps, 5], and ns, [options, steps].

    What a step holds is the stream before anything is sent, the stream later, the host, the links inside and between.
    """

    def __init__(self, problem: CompressionProblem, palette: Sequence[Named]) -> None:
        self.problem, self.palette = problem, palette
        self.known: dict[tuple[int, bool], tuple[NDArray[np.bool_], Times]] = {}

    def __call__(self, elements: int, gradients: int) -> tuple[NDArray[np.bool_], Times]:
        key = elements, gradients > 1
        if key not in self.known:
            prices = Prices(self.problem, elements)
            self.known[key] = _arrays([prices.works(*named, gradients) for named in self.palette])
        return self.known[key]


def _arrays(rows: Sequence[Sequence[StepWork]]) -> tuple[NDArray[np.bool_], Times]:
    longest = max(len(row) for row in rows)
    held, ns = np.zeros((len(rows), longest, 5), np.bool_), np.zeros((len(rows), longest), np.int64)
    for option, row in enumerate(rows):
        sent = False
        for number, work in enumerate(row):
            ns[option, number] = work.ns
            sent = sent or "device" not in work.resources
            for name in work.resources:
                place = {"device": 1 if sent else 0, "host": 2, "intra": 3, "inter": 4}[name]
                held[option, number, place] = True
    return held, ns


def _after(at: Times, work: int, steps: tuple[NDArray[np.bool_], Times]) -> Times:
    """[states, options, 7]: the states after one more group with `work` of the stream before its first step."""
    held, ns = steps
    now = at[:, STREAM] + work
    due = at[:, WAITING_SINCE] <= now
    found = np.repeat(at[:, None, :], len(ns), axis=1)
    found[:, :, STREAM] = (now + np.where(due, at[:, WAITING], 0))[:, None]
    found[:, :, WAITING] = np.where(due, 0, at[:, WAITING])[:, None]
    time = found[:, :, STREAM].copy()
    for number in range(ns.shape[1]):
        early, late, *queued = (np.flatnonzero(held[:, number, place]) for place in range(5))
        time[:, early] += ns[early, number]
        found[:, early, STREAM] = time[:, early]
        time[:, late] += ns[late, number]
        found[:, late, WAITING] += ns[late, number]
        found[:, late, WAITING_SINCE] = np.maximum(found[:, late, WAITING_SINCE], time[:, late])
        for place, options in zip((HOST, INTRA, INTER), queued, strict=True):
            time[:, options] = np.maximum(time[:, options], found[:, options, place])
        moved = np.unique(np.concatenate(queued))
        time[:, moved] += ns[moved, number]
        for place, options in zip((HOST, INTRA, INTER), queued, strict=True):
            found[:, options, place] = time[:, options]
    found[:, :, END] = np.maximum(found[:, :, END], time)
    return found


def _kept(layer: _Layer, rest: NDArray[np.float64]) -> _Layer:
    """The best states by what each would end at: `rest` is the backward pass, then device, host and both links."""
    at = layer.at
    backward, device, host, intra, inter = rest
    ends = [
        at[:, STREAM] + at[:, WAITING] + (backward + device),
        at[:, HOST] + host,
        at[:, INTRA] + intra,
        at[:, INTER] + inter,
        at[:, END],
    ]
    end = np.max(ends, axis=0)
    order = np.lexsort((np.sum(ends, axis=0), end))
    rows: list[int] = []
    compared = at[:, COMPARED].copy()
    compared[:, 0] += at[:, WAITING]
    for row in order[: 40 * WIDTH].tolist():
        if not (compared[rows] <= compared[row]).all(1).any():
            rows.append(row)
            if len(rows) == WIDTH:
                break
    return _Layer(at[rows], layer.origin[rows])


def _path(layers: Sequence[_Layer], ends: Sequence[int], palette: Sequence[Named], row: int) -> Groups:
    groups: list[GradientGroup] = []
    place = len(ends)
    while place:
        before, state, option = layers[place].origin[row].tolist()
        name, steps = palette[option]
        first = ends[before - 1] + 1 if before else 0
        groups.append(GradientGroup(first=first, last=ends[place - 1], compressor=name, steps=steps))
        place, row = before, state
    return tuple(reversed(groups))
