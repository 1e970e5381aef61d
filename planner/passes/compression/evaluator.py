"""The time of an iteration, many times over: the same as timeline_of.time_ns, from prices and states that are kept.

Priced steps are kept for each option and size. Groups may be held: the state of the timeline before the backward pass
of each gradient is kept, and a later trial begins where it differs. A trial that cannot end before a given time ends
early: a resource takes at least all its work and its gaps so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from treadle.planner.passes.compression.candidates import PricedOption, candidates
from treadle.planner.passes.compression.decisions import GradientGroup
from treadle.planner.passes.compression.first_come import DEVICE, HOST, INTER, INTRA, STRIDE, run
from treadle.planner.passes.compression.payload import works
from treadle.planner.passes.compression.problem import CompressionProblem

NUMBERS = {"device": DEVICE, "intra": INTRA, "inter": INTER, "host": HOST}
UNLIMITED = 1 << 62


class _Row(NamedTuple):
    """The steps of a group as first_come.run reads them, and the work that each resource gets from them."""

    first: list[int]
    second: list[int]
    ns: list[int]
    work: list[int]


class _State(NamedTuple):
    """The timeline at one moment."""

    heap: list[int]
    idle: list[int]
    gaps: list[int]
    held: list[int]

    def copy(self) -> _State:
        return _State(self.heap[:], self.idle[:], self.gaps[:], self.held[:])


class Evaluator:
    """Times of one problem. Raises InputError for steps that are no option, as payload.works does."""

    def __init__(self, problem: CompressionProblem) -> None:
        self.problem = problem
        self.evaluations = 0
        gradients = len(problem.gradients)
        tasks = gradients * (STRIDE + 1)
        self._bits = (tasks + 2).bit_length(), tasks.bit_length()
        self._backward = [gradient.backward_ns for gradient in problem.gradients]
        self._sums = [0]
        for gradient in problem.gradients:
            self._sums.append(self._sums[-1] + gradient.elements)
        self._resources = HOST + problem.host_workers
        self._first = [0] * (gradients * STRIDE)
        self._second = self._first[:]
        self._ns = [-1] * len(self._first)
        self._rows: dict[tuple[str | None, tuple[str, ...], int, bool, int], _Row] = {}
        self._candidates: dict[tuple[int, bool], tuple[PricedOption, ...]] = {}
        self._groups: tuple[GradientGroup, ...] = ()
        self._released = [-1] * gradients
        self._work = [0] * self._resources
        self._work[DEVICE] = problem.backward_ns
        zeros = [0] * self._resources
        self._states = [_State([gradients * STRIDE] if gradients else [], zeros, zeros, [-1, -1])]

    def candidates(self, elements: int, gradients: int = 1) -> tuple[PricedOption, ...]:
        """What can be done with a group of `gradients` with `elements` in all; see candidates.candidates."""
        key = elements, gradients > 1
        if key not in self._candidates:
            self._candidates[key] = candidates(self.problem, elements, gradients)
        return self._candidates[key]

    def time(self, groups: Sequence[GradientGroup], above: int | None = None) -> int:
        """ns of one iteration; `above` if it is not below that."""
        self.evaluations += 1
        changed, begin = self._difference(groups)
        old = [(place, self._row(place, self._groups[place])) for place in changed if place < len(self._groups)]
        new = [(place, self._row(place, groups[place])) for place in changed if place < len(groups)]
        work = _added(self._work, [row for _, row in new], [row for _, row in old])
        limit = UNLIMITED if above is None else above - 1 - self.problem.forward_ns
        limits = [limit - ns for ns in work]
        state = self._states[begin]
        if any(gap > most for gap, most in zip(state.gaps, limits, strict=True)):
            assert above is not None
            return above
        self._put(old, empty=True)
        self._put(new)
        state = state.copy()
        finished = self._run(state, self._release(groups), limits)
        self._put(new, empty=True)
        self._put(old)
        if finished:
            return self._end(state)
        assert above is not None
        return above

    def hold(self, groups: Sequence[GradientGroup]) -> int:
        """ns of one iteration. Later trials begin where they differ from `groups`."""
        self.evaluations += 1
        changed, begin = self._difference(groups)
        old = [(place, self._row(place, self._groups[place])) for place in changed if place < len(self._groups)]
        new = [(place, self._row(place, groups[place])) for place in changed if place < len(groups)]
        self._work = _added(self._work, [row for _, row in new], [row for _, row in old])
        self._put(old, empty=True)
        self._put(new)
        self._released = self._release(groups)
        self._groups = tuple(groups)
        state = self._states[begin].copy()
        limits = [UNLIMITED] * self._resources
        del self._states[begin + 1 :]
        for gradient in range(begin + 1, len(self._backward)):
            self._run(state, self._released, limits, gradient)
            self._states.append(state.copy())
        self._run(state, self._released, limits)
        return self._end(state)

    def _difference(self, groups: Sequence[GradientGroup]) -> tuple[list[int], int]:
        """The places of groups that are not those held, and the gradient before whose backward pass nothing differs."""
        held = self._groups
        common = min(len(held), len(groups))
        changed = [place for place in range(common) if groups[place] is not held[place]]
        changed = [place for place in changed if groups[place] != held[place]]
        changed += range(common, max(len(held), len(groups)))
        if not changed:
            return changed, len(self._states) - 1
        ends = [each[changed[0]].last for each in (held, groups) if changed[0] < len(each)]
        return changed, min(*ends, len(self._states) - 1)

    def _release(self, groups: Sequence[GradientGroup]) -> list[int]:
        """The group that each gradient completes, -1 for none."""
        released = [-1] * len(self._backward)
        for place, group in enumerate(groups):
            released[group.last] = place
        return released

    def _row(self, place: int, group: GradientGroup) -> _Row:
        elements = self._sums[group.last + 1] - self._sums[group.first]
        worker = place % self.problem.host_workers
        key = group.compressor, group.steps, elements, group.first != group.last, worker
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = self._priced(group, elements, worker)
        return row

    def _priced(self, group: GradientGroup, elements: int, worker: int) -> _Row:
        steps = works(self.problem, group.compressor, group.steps, elements, group.last - group.first + 1)
        first, second, lengths = [0] * STRIDE, [0] * STRIDE, [-1] * STRIDE
        work = [0] * self._resources
        for number, step in enumerate(steps):
            held = [NUMBERS[name] + (worker if name == "host" else 0) for name in step.resources]
            first[number], second[number], lengths[number] = held[0], held[-1], step.ns
            for resource in held:
                work[resource] += step.ns
        return _Row(first, second, lengths, work)

    def _put(self, rows: Iterable[tuple[int, _Row]], empty: bool = False) -> None:
        for place, row in rows:
            begin, end = place * STRIDE, (place + 1) * STRIDE
            self._first[begin:end], self._second[begin:end] = row.first, row.second
            self._ns[begin:end] = [-1] * STRIDE if empty else row.ns

    def _run(self, state: _State, released: Sequence[int], limits: Sequence[int], until: int = -1) -> bool:
        steps = self._first, self._second, self._ns
        return run(*state, *steps, self._backward, released, limits, *self._bits, until if until >= 0 else 1 << 62)

    def _end(self, state: _State) -> int:
        return self.problem.forward_ns + (max(state.idle) >> self._bits[0])


def _added(work: Sequence[int], new: Iterable[_Row], old: Iterable[_Row]) -> list[int]:
    """Work of each resource with that of `new` and without that of `old`."""
    total = list(work)
    for sign, rows in ((1, new), (-1, old)):
        for row in rows:
            for resource, ns in enumerate(row.work):
                total[resource] += sign * ns
    return total
