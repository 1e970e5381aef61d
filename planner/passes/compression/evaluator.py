"""The time of an iteration, many times over: the same as timeline_of.time_ns, from prices and states that are kept.

Priced steps are kept for each option and size. Groups may be held: states of their timeline are kept, and a later trial
begins at the last one before it differs. A trial that cannot end before a given time ends early: a resource takes at
least all its work and its gaps so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from treadle.planner.errors import InputError
from treadle.planner.passes.compression.candidates import Named, PricedOption, candidates
from treadle.planner.passes.compression.decisions import GradientGroup
from treadle.planner.passes.compression.first_come import (
    BUBBLE,
    DEVICE,
    HOST,
    INTER,
    INTRA,
    NEVER,
    STRIDE,
    Values,
    run,
)
from treadle.planner.passes.compression.options import Option
from treadle.planner.passes.compression.payload import works
from treadle.planner.passes.compression.problem import CompressionProblem
from treadle.planner.search.compiled import COMPILES

NUMBERS = {"device": DEVICE, "intra": INTRA, "inter": INTER, "host": HOST}
UNLIMITED = 1 << 62
SPACING = 8
"""Gradients between two states that are kept."""


class _Row(NamedTuple):
    """The steps of a group as first_come.run reads them, and the work that each resource gets from them."""

    first: Values
    second: Values
    ns: Values
    work: tuple[int, ...]


_Placed = tuple[int, _Row]


class _State(NamedTuple):
    """The timeline at one moment, as first_come.run reads it; `gaps` as a list, to be compared without it."""

    heap: Values
    idle: Values
    gaps: list[int]
    marks: Values


class Evaluator:
    """Times of one problem. Raises InputError for steps that are no option, as payload.works does, and for times that
    are too long to be counted.

    evaluations: timelines that were asked for. groups: those held. bubble_ns: when the last time began at which no link
    was busy before the first collective of one of them, 0 if there was none; from the start of the backward pass on. A
    decoding between two collectives of one group makes no bubble.
    """

    def __init__(self, problem: CompressionProblem) -> None:
        self.problem = problem
        self.evaluations = self.bubble_ns = 0
        self.groups: tuple[GradientGroup, ...] = ()
        gradients = len(problem.gradients)
        self._round_bits = (gradients * (STRIDE + 1) + 2).bit_length()
        self._longest = UNLIMITED >> self._round_bits
        self._require(problem.backward_ns)
        self._backward = _values(gradient.backward_ns for gradient in problem.gradients)
        self._sums = [0]
        for gradient in problem.gradients:
            self._sums.append(self._sums[-1] + gradient.elements)
        self._resources = HOST + problem.host_workers
        self._first = _values([0] * (gradients * STRIDE))
        self._second, self._ends, self._trial_ends = (self._first.copy() for _ in range(3))
        self._ns = _values([-1] * (gradients * STRIDE))
        self._nothing = _values([-1] * STRIDE)
        self._saved = _values([0] * (2 * gradients + 4))
        self._released = _values([-1] * gradients)
        self._unlimited = _values([UNLIMITED] * self._resources)
        self._work = [problem.backward_ns] + [0] * (self._resources - 1)
        idle = [0] * self._resources
        self._states = [_State(_values([0, gradients * STRIDE]), _values(idle), idle, _values([-1, -1, 0, 0, 0]))]
        self._rows: dict[tuple[str | None, Option, int, bool, int], _Row] = {}
        self._tables: dict[tuple[int, int, bool, int], tuple[tuple[Named, ...], list[tuple[int, _Row]]]] = {}
        self._likely = -1  # the place of the last option that was an improvement, which is tried first
        self._candidates: dict[tuple[int, bool], tuple[PricedOption, ...]] = {}

    def candidates(self, elements: int, gradients: int = 1) -> tuple[PricedOption, ...]:
        """What can be done with a group of `gradients` with `elements` in all; see candidates.candidates."""
        key = elements, gradients > 1
        if key not in self._candidates:
            self._candidates[key] = candidates(self.problem, elements, gradients)
        return self._candidates[key]

    def time(self, groups: Sequence[GradientGroup], above: int | None = None) -> int:
        """ns of one iteration; `above` if it is not below that."""
        self.evaluations += 1
        old, new, begin = self._difference(groups)
        moved = [groups[place].last for place, _ in new] != [self.groups[place].last for place, _ in old]
        return self._trial(begin, old, new, self._release(groups) if moved else self._released, above)

    def improved(self, place: int, options: tuple[Named, ...], below: int) -> tuple[int, int] | None:
        """The least ns of an iteration with one of `options` for one of the groups held, and the first place among them
        that gives it; None if none is below `below`. Every option counts as an evaluation."""
        group = self.groups[place]
        begin = min(group.last // SPACING, len(self._states) - 1)
        old = [(place, self._row(place, group, group.compressor, group.steps))]
        gaps = self._states[begin].gaps
        least = [ns + gap for ns, gap in zip(self._with([], old), gaps, strict=True)]
        rows = self._rows_of(place, options)
        best: tuple[int, int] | None = None
        for number, row in sorted(rows, key=lambda each: each[0] != self._likely):
            limit = below if best is None else best[0] + (number < best[1])
            most = limit - self.problem.forward_ns
            if any(ns + more >= most for ns, more in zip(least, row.work, strict=True)):
                continue
            ns = self._trial(begin, old, [(place, row)], self._released, limit)
            if ns < limit:
                best = ns, number
        self.evaluations += len(options)
        if best is not None:
            self._likely = best[1]
        return best

    def hold(self, groups: Sequence[GradientGroup]) -> int:
        """ns of one iteration. Later trials begin where they differ from `groups`."""
        self.evaluations += 1
        old, new, begin = self._difference(groups)
        self._work = self._with(new, old)
        self._put(old, new)
        self._released = self._release(groups)
        self.groups = tuple(groups)
        del self._states[begin + 1 :]
        state = self._states[begin]
        for gradient in range((begin + 1) * SPACING, len(self._backward), SPACING):
            reached = self._run(state, self._released, self._unlimited, self._ends, gradient)
            assert reached is not None
            self._states.append(state := reached)
        reached = self._run(state, self._released, self._unlimited, self._ends)
        assert reached is not None
        self.bubble_ns = int(reached.marks[BUBBLE])
        return self._end(reached)

    def ended_ns(self) -> list[int]:
        """When the last step of each group held ends, from the start of the backward pass on."""
        ends, ns = list(self._ends), list(self._ns)
        found = []
        for begin in range(0, len(self.groups) * STRIDE, STRIDE):
            last = begin
            while ns[last + 1] >= 0:
                last += 1
            found.append(int(ends[last]))
        return found

    def _difference(self, groups: Sequence[GradientGroup]) -> tuple[list[_Placed], list[_Placed], int]:
        """What goes and what comes from the groups held to `groups`, and the last state before that."""
        held = self.groups
        common = min(len(held), len(groups))
        changed = [place for place in range(common) if groups[place] is not held[place]]
        changed = [place for place in changed if groups[place] != held[place]]
        changed += range(common, max(len(held), len(groups)))
        old, new = (
            [
                (place, self._row(place, (group := each[place]), group.compressor, group.steps))
                for place in changed
                if place < len(each)
            ]
            for each in (held, groups)
        )
        first = changed[0] if changed else common
        ends = [each[first].last // SPACING for each in (held, groups) if first < len(each)]
        return old, new, min([*ends, len(self._states) - 1])

    def _trial(self, begin: int, old: list[_Placed], new: list[_Placed], released: Values, above: int | None) -> int:
        """ns of an iteration with rows `new` for `old`, or `above`."""
        state = self._states[begin]
        work = self._with(new, old)
        limits = [UNLIMITED] * self._resources
        if above is not None:
            limit = above - 1 - self.problem.forward_ns
            limits = [limit - ns for ns in work]
            for gap, most in zip(state.gaps, limits, strict=True):
                if gap > most:
                    return above
        self._put(old, new)
        reached = self._run(state, released, _values(limits), self._trial_ends)
        self._put(new, old)
        if reached is None:
            assert above is not None
            return above
        return self._end(reached)

    def _with(self, new: Iterable[_Placed], old: Iterable[_Placed]) -> list[int]:
        """Work of each resource with that of `new` and without that of `old`."""
        total = self._work
        for _, row in new:
            total = [ns + more for ns, more in zip(total, row.work, strict=True)]
        for _, row in old:
            total = [ns - less for ns, less in zip(total, row.work, strict=True)]
        self._require(sum(total))
        return total

    def _require(self, ns: int) -> None:
        if ns > self._longest:
            raise InputError(f"found {ns} ns of work in an iteration, expected at most {self._longest}")

    def _put(self, old: Iterable[_Placed], new: Iterable[_Placed]) -> None:
        for place, _ in old:
            self._ns[place * STRIDE : (place + 1) * STRIDE] = self._nothing
        for place, row in new:
            begin, end = place * STRIDE, (place + 1) * STRIDE
            self._first[begin:end], self._second[begin:end], self._ns[begin:end] = row.first, row.second, row.ns

    def _release(self, groups: Sequence[GradientGroup]) -> Values:
        """The group that each gradient completes, -1 for none."""
        released = [-1] * len(self._backward)
        for place, group in enumerate(groups):
            released[group.last] = place
        return _values(released)

    def _row(self, place: int, group: GradientGroup, compressor: str | None, steps: Option) -> _Row:
        elements = self._sums[group.last + 1] - self._sums[group.first]
        worker = place % self.problem.host_workers
        key = compressor, steps, elements, group.first != group.last, worker
        row = self._rows.get(key)
        if row is None:
            gradients = group.last - group.first + 1
            row = self._rows[key] = self._priced(compressor, steps, elements, gradients, worker)
        return row

    def _rows_of(self, place: int, options: tuple[Named, ...]) -> list[tuple[int, _Row]]:
        """The rows of options that differ in what they hold, each with the first place that has it."""
        group = self.groups[place]
        elements = self._sums[group.last + 1] - self._sums[group.first]
        key = id(options), elements, group.first != group.last, place % self.problem.host_workers
        if key not in self._tables:
            unlike: dict[tuple[tuple[int, ...], ...], tuple[int, _Row]] = {}
            for number, (compressor, steps) in enumerate(options):
                row = self._row(place, group, compressor, steps)
                unlike.setdefault((tuple(row.first), tuple(row.second), tuple(row.ns)), (number, row))
            self._tables[key] = options, list(unlike.values())
        return self._tables[key][1]

    def _priced(self, compressor: str | None, steps: Option, elements: int, gradients: int, worker: int) -> _Row:
        first, second, lengths = [0] * STRIDE, [0] * STRIDE, [-1] * STRIDE
        work = [0] * self._resources
        for number, step in enumerate(works(self.problem, compressor, steps, elements, gradients)):
            self._require(step.ns)
            held = [NUMBERS[name] + (worker if name == "host" else 0) for name in step.resources]
            first[number], second[number], lengths[number] = held[0], held[-1], step.ns
            for resource in held:
                work[resource] += step.ns
        return _Row(_values(first), _values(second), _values(lengths), tuple(work))

    def _run(self, state: _State, released: Values, limits: Values, ends: Values, until: int = NEVER) -> _State | None:
        """The state before the backward pass of a gradient, or at the end; None beyond the limits."""
        idle, gaps, marks = state.idle.copy(), _values(state.gaps), state.marks.copy()
        steps = self._first, self._second, self._ns
        saved = run(
            state.heap, idle, gaps, marks, *steps, self._backward, released, limits, ends, self._saved,
            self._round_bits, until,
        )  # fmt: skip
        return None if saved < 0 else _State(self._saved[:saved].copy(), idle, [int(gap) for gap in gaps], marks)

    def _end(self, state: _State) -> int:
        return self.problem.forward_ns + (max(int(stamp) for stamp in state.idle) >> self._round_bits)


def _values(numbers: Iterable[int]) -> Values:
    return np.array(list(numbers), dtype=np.int64) if COMPILES else list(numbers)
