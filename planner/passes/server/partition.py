"""Chunks spread over bins: longest processing time first, and an exact optimum by CP-SAT where there are few.

Longest processing time first gives each size, from the largest down, to the bin where (load + size) / rate is least; on
b equal bins its fullest one has at most 4/3 - 1/(3b) times what is possible (Graham, Bounds on Multiprocessing Timing
Anomalies). The exact search decides how many chunks of each size go into each bin:

    n[s, b] >= 0                        chunks of size s in bin b
    sum over b of n[s, b] = count[s]
    T >= sum over s of s * n[s, b] * P / rate[b]                for each b, P a common multiple of the rates
    loads of equal bins do not rise                             symmetry
    minimise T, below that of longest processing time first
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import NamedTuple

import numpy as np

from treadle.planner.passes.server.chunking import Ints
from treadle.planner.search.clock import Clock

FEW = 48
"""Chunks of one size up to which each of them is given to its bin in turn."""
MOST_EXACT, MOST_BINS, MOST_MULTIPLE = 64, 16, 10**4
"""Chunks, bins and common multiple of rates up to which a spread is searched exactly."""
WORK = 2.0
"""Deterministic seconds of CP-SAT for one spread."""


class BinSpread(NamedTuple):
    """The bin of each chunk. `optimal`: no other spread has less in its fullest bin. `cut`: wall clock ended the
    search."""

    bins: Ints
    optimal: bool
    cut: bool = False


def guarantee(bins: int) -> Fraction:
    """What the fullest of `bins` equal bins has at most, as a multiple of the least possible."""
    return Fraction(4, 3) - Fraction(1, 3 * bins)


def spread(sizes: Ints, rates: Sequence[int], clock: Clock | None = None) -> BinSpread:
    """Chunks of `sizes` bytes over bins of these rates; exact where there is a `clock` and few chunks."""
    if len(rates) == 1 or not len(sizes):
        return BinSpread(np.zeros(len(sizes), dtype=np.int64), True)
    bins = longest_first(sizes, rates)
    equal = len({*rates}) == 1
    most = int(loads_of(sizes, bins, len(rates)).max())
    if equal and most == least_most(sizes, len(rates)):
        return BinSpread(bins, True)
    small = len(sizes) <= MOST_EXACT and len(rates) <= MOST_BINS
    if clock is None or not small:
        return BinSpread(bins, False)
    return BinSpread(bins, False, cut=True) if clock.over() else exact_spread(sizes, rates, bins, clock)


def loads_of(sizes: Ints, bins: Ints, count: int) -> Ints:
    """Bytes in each of `count` bins."""
    loads = np.zeros(count, dtype=np.int64)
    np.add.at(loads, bins, sizes)
    return loads


def longest_first(sizes: Ints, rates: Sequence[int]) -> Ints:
    """Longest processing time first; the first of equal bins, chunks of one size in their order."""
    bins = np.zeros(len(sizes), dtype=np.int64)
    order = np.argsort(-sizes, kind="stable")
    ends = np.flatnonzero(np.diff(sizes[order])) + 1
    loads = [0] * len(rates)
    for run in np.split(order, ends):
        size = int(sizes[run[0]])
        bins[run] = (
            _in_turn(size, len(run), loads, rates) if len(run) <= FEW else _at_once(size, len(run), loads, rates)
        )
        for place, count in enumerate(np.bincount(bins[run], minlength=len(rates)).tolist()):
            loads[place] += size * count
    return bins


def _in_turn(size: int, count: int, loads: Sequence[int], rates: Sequence[int]) -> list[int]:
    """The bins of `count` chunks of one size, one after the other."""
    multiple = lcm(*rates)
    times = [multiple // rate for rate in rates]
    ends = [((load + size) * time, place) for place, (load, time) in enumerate(zip(loads, times, strict=True))]
    heapq.heapify(ends)
    found = []
    for _ in range(count):
        end, place = ends[0]
        found.append(place)
        heapq.heapreplace(ends, (end + size * times[place], place))
    return found


def _at_once(size: int, count: int, loads: Sequence[int], rates: Sequence[int]) -> Ints:
    """The same for many: the least of all ends that bins may have up to a level that holds as many."""
    held, speeds = np.array(loads, dtype=np.float64), np.array(rates, dtype=np.float64)

    def fitting(level: float) -> Ints:
        return np.clip((level * speeds - held) // size, 0, count).astype(np.int64)

    low, high = 0.0, float((held / speeds).max() + (count + len(rates)) * size / speeds.sum())
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if int(fitting(middle).sum()) >= count else (middle, high)
    most = fitting(high) + 1
    place = np.repeat(np.arange(len(rates)), most)
    turn = np.arange(len(place)) - np.repeat(np.cumsum(most) - most, most) + 1
    ends = (held[place] + size * turn) / speeds[place]
    first = np.lexsort((place, ends))[:count]
    found: Ints = place[first]
    return found


def least_most(sizes: Ints, bins: int) -> int:
    """What the fullest of equal bins has at least: the largest chunk; an even share in whole units of all sizes; of the
    k b + 1 largest chunks, k + 1 of which are in one bin, the k + 1 smallest."""
    sums = np.concatenate(([0], np.cumsum(np.sort(sizes)[::-1])))
    unit = gcd(*sizes.tolist())
    turns = np.arange((len(sizes) - 1) // bins + 1)
    together = int((sums[turns * bins + 1] - sums[turns * bins - turns]).max())
    return max(together, -(-int(sums[-1]) // (bins * unit)) * unit)


def exact_spread(sizes: Ints, rates: Sequence[int], known: Ints, clock: Clock) -> BinSpread:
    """The best spread, or `known` where none is better or the search ends early."""
    shared = gcd(*rates)
    slow = [rate // shared for rate in rates]
    multiple = lcm(*slow)
    if multiple > MOST_MULTIPLE:
        return BinSpread(known, False)
    unit = gcd(*sizes.tolist())
    times = [multiple // rate for rate in slow]
    kinds, counts = np.unique(sizes // unit, return_counts=True)
    before = loads_of(sizes // unit, known, len(rates)).tolist()
    most = max(load * time for load, time in zip(before, times, strict=True))

    from ortools.sat.python import cp_model

    from treadle.planner.solver.cp_sat import configured, search
    from treadle.planner.solver.interface import Options, Reporter

    cp = cp_model.CpModel()
    given = [[cp.new_int_var(0, count, "") for _ in rates] for count in counts.tolist()]
    for row, count in zip(given, counts.tolist(), strict=True):
        cp.add(sum(row) == count)
    total = int((kinds * counts).sum())
    least = max(int(kinds[-1]) * min(times), -(-total // sum(Fraction(1, time) for time in times)))
    if least >= most:
        return BinSpread(known, True)
    end = cp.new_int_var(least, most - 1, "")
    loads = [
        sum(kind * row[place] for kind, row in zip(kinds.tolist(), given, strict=True)) for place in range(len(rates))
    ]
    for load, time in zip(loads, times, strict=True):
        cp.add(end >= load * time)
    for place in range(1, len(rates)):
        if times[place] == times[place - 1]:
            cp.add(loads[place - 1] >= loads[place])
    cp.minimize(end)
    left_s = None if clock.limit_s is None else max(0.01, clock.left_s)
    options = Options(0.0, WORK, None, left_s, 0, 1, Reporter(None, 0))
    solver = configured(options)
    status = search(solver, cp, options, clock.stop)
    if status == cp_model.INFEASIBLE:
        return BinSpread(known, True)
    cut = status != cp_model.OPTIMAL and solver.deterministic_time < 0.99 * WORK
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return BinSpread(known, False, cut)
    bins = np.zeros(len(sizes), dtype=np.int64)
    for kind, row in zip(kinds.tolist(), given, strict=True):
        counted = [solver.value(variable) for variable in row]
        bins[sizes == kind * unit] = np.repeat(np.arange(len(rates)), counted)
    return BinSpread(bins, status == cp_model.OPTIMAL, cut)
