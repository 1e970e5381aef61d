"""The first plan of a search: checkpoints at a few narrow places, found in seconds for thousands of ops.

* In one level ("Training Deep Nets with Sublinear Memory Cost", section 3): the forward pass keeps what crosses between
  2, 4, 8, .. shares, each share is recomputed once, and what backward nodes read of it is kept.
* Nested (the same paper, section 4.2), where that does not fit: of what a backward node lacks only the last few nodes
  are kept, with what crosses at 1/2, 3/4, .. of the distance to them, so that log n tensors are live at a time.

The first plan that fits is taken: the fewer the shares, the less is recomputed. Where none does, stages that exceed the
budget are entered bare, with nothing live that can be recomputed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from treadle.planner.passes.memory.formulation.useful import leanest_backward, made_for, unrepeatable
from treadle.planner.passes.memory.lower import RecomputeSchedule, lower, prune, store_all
from treadle.planner.passes.memory.methods.heuristics import crossing_bytes
from treadle.planner.passes.memory.methods.unfolding import fastest_within
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.program import EnterStage, RunForward
from treadle.planner.passes.memory.simulate import moments

LEAST = 4
"""Nodes of a share, at least."""
BARE, FEW = 3, 12
"""Rounds in which stages are made bare, and bare stages, at most."""


def solve_checkpoints(problem: MemoryProblem) -> RecomputeSchedule:
    """A pruned plan within the budget, or else the one of those tried that exceeds it least.

    It mostly takes one forward pass more than store-all, nested about log n, and one for each bare stage.
    """
    whole = store_all(problem)
    over = _over(problem, whole)
    if not over:
        return whole
    closest = sum(over.values()), whole
    places = _Places.of(problem)
    implementations = dict.fromkeys((whole.backward, leanest_backward(problem)))
    tried = [(impls, kept, leaf, frozenset[int]()) for impls in implementations for kept, leaf in _checkpoints(places)]
    for _ in range(1 + BARE):
        again = []
        for impls, kept, leaf, bare in tried:
            plan = _unfolded(problem, kept, impls, leaf, places, bare)
            over = _over(problem, plan)
            if not over:
                return plan
            closest = min(closest, (sum(over.values()), plan), key=lambda found: found[0])
            if len(bare | over.keys()) <= FEW:
                again.append((impls, kept, leaf, bare | over.keys()))
        tried = again
    return closest[1]


def _checkpoints(places: _Places) -> Iterator[tuple[frozenset[int], int]]:
    """What the forward pass keeps, and how many nodes are recomputed at a time: in one level with more and more shares,
    then nested with fewer and fewer nodes in the last."""
    size = len(places.width)
    powers = [2**k for k in range(1, size.bit_length())]
    for count in takewhile(lambda count: count <= size // LEAST, powers):
        yield frozenset[int]().union(*(places.crossing(i) for i in places.shares(count))), size
    for count in powers:
        yield frozenset(places.halfway(0, size, size // count)[1]), size // count


def _over(problem: MemoryProblem, plan: RecomputeSchedule) -> dict[int, int]:
    """Bytes by which stages exceed the budget."""
    room, stage = problem.budget_bytes - problem.base_bytes, -1
    over: dict[int, int] = {}
    program = lower(problem, plan)
    for instruction, moment in zip(program, moments(problem, program), strict=True):
        stage += isinstance(instruction, EnterStage)
        if (more := sum(moment[1:]) - room) > 0:
            over[stage] = max(more, over.get(stage, 0))
    return over


@dataclass(frozen=True)
class _Places:
    """Where a problem may be cut: `width[i]` bytes cross from node i and those before to later nodes; `last[j]` is the
    last forward node that reads j."""

    width: list[int]
    last: dict[int, int]

    @staticmethod
    def of(problem: MemoryProblem) -> _Places:
        return _Places(crossing_bytes(problem), {j: i for i, node in enumerate(problem.fwd) for j in node.inputs})

    def crossing(self, i: int) -> frozenset[int]:
        return frozenset(j for j, t in self.last.items() if j <= i < t)

    def shares(self, count: int) -> list[int]:
        """The narrowest place near the end of each of `count` equal shares of the nodes."""
        size = len(self.width)
        return [self.narrowest(size * (2 * k - 1) // (2 * count), size * k // count) for k in range(1, count)]

    def narrowest(self, first: int, end: int) -> int:
        """The last of the narrowest places in first .. end - 1."""
        return min(range(first, max(end, first + 1)), key=lambda i: (self.width[i], -i))

    def halfway(self, first: int, end: int, leaf: int) -> tuple[int, set[int]]:
        """The start of the last `leaf` nodes at most of first .. end - 1, and what crosses halfway to it, halfway from
        there and so on."""
        kept: set[int] = set()
        while end - first > leaf:
            place = self.narrowest(first + (end - first) // 4, first + (end - first) * 3 // 4)
            kept |= self.crossing(place)
            first = place + 1
        return first, kept


def _unfolded(
    problem: MemoryProblem,
    kept: frozenset[int],
    backward: tuple[int, ...],
    leaf: int,
    places: _Places,
    bare: frozenset[int],
) -> RecomputeSchedule:
    """The pruned plan in which the forward pass keeps `kept` and each stage recomputes what its backward node lacks. Of
    that the crossings are kept, and what backward nodes read of the last `leaf` nodes; nothing that can be recomputed
    is live before stages of `bare` and after them."""
    needs = [back.impls[way].needs for back, way in zip(problem.bwd, backward, strict=True)]
    latest = {i: k for k, reads in enumerate(needs) for i in reads}
    once = unrepeatable(problem)
    there = once if 1 in bare else kept | once
    runs = [tuple(RunForward(i) for i in range(len(problem.fwd)))]
    stores = [there]
    for k, reads in enumerate(needs):
        again = made_for(problem, reads, there)
        runs.append(tuple(RunForward(i) for i in sorted(again)))
        if not bare.isdisjoint((k + 1, k + 2)):
            there = once
        elif again:
            start, crossing = places.halfway(min(again), max(again) + 1, leaf)
            there = there | (again & crossing) | {i for i in again if i >= start and latest.get(i, -1) > k}
        stores.append(there)
    return fastest_within(problem, prune(problem, RecomputeSchedule(tuple(runs), tuple(stores), backward)))
