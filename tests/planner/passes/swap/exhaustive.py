"""The least time of an iteration by exhaustive search over everything that can happen, for tiny problems.

Shares nothing with the planner. Copies in both directions run at full speed. Time passes from one end of an operator
or a copy to the next; at each of these moments the search tries every drop and every start.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from treadle.planner.passes.swap.problem import PERSISTENT, SwapProblem


class State(NamedTuple):
    """`here`: tensors that can be used, `dirty`: those whose copy on the host is no longer or not yet right, `since`
    operators that are done. A busy stream has (what, how long yet)."""

    done: frozenset[int]
    here: frozenset[int]
    dirty: frozenset[int]
    compute: tuple[int, int] | None = None
    into: tuple[int, int] | None = None
    out: tuple[int, int] | None = None


class Search:
    def __init__(
        self,
        problem: SwapProblem,
        pool: tuple[Sequence[int], Sequence[int]] | None,
        order: Sequence[int] | None,
    ) -> None:
        """pool: (classes, counts) as in treadle.planner.passes.swap.layout.Pool; None to count bytes."""
        self.problem, self.pool, self.order = problem, pool, order
        self.size = [tensor.bytes for tensor in problem.tensors]
        self.distinct = sorted(set(self.size) - {0})
        self.users = [
            {at for at, op in enumerate(problem.ops) if t in (*op.inputs, *op.outputs)} for t in range(len(self.size))
        ]
        made = {t: at for at, op in enumerate(problem.ops) for t in op.outputs}
        self.before = [{*op.after, *(made[t] for t in op.inputs if t in made)} for op in problem.ops]
        if order is not None:
            for first, second in itertools.pairwise(order):
                self.before[second].add(first)
        self.maker = made
        self.persistent = {t for t, tensor in enumerate(problem.tensors) if tensor.role in PERSISTENT and tensor.bytes}

    def fits(self, held: set[int]) -> bool:
        if self.pool is None:
            return sum(self.size[t] for t in held) <= self.problem.arena_bytes
        classes, counts = self.pool
        taken = Counter(classes[self.distinct.index(self.size[t])] for t in held if self.size[t])
        return all(number <= counts[q - 1] for q, number in taken.items())

    def held(self, state: State) -> set[int]:
        held = {t for t in state.here if self.size[t]}
        if state.compute is not None:
            held |= set(self.problem.ops[state.compute[0]].outputs)
        for copy in (state.into, state.out):
            if copy is not None:
                held.add(copy[0])
        return held

    def busy(self, state: State) -> set[int]:
        """Tensors that the running operator uses."""
        return set(self.problem.ops[state.compute[0]].inputs) if state.compute is not None else set()

    def lives(self, t: int, done: frozenset[int]) -> bool:
        tensor = self.problem.tensors[t]
        return tensor.role in PERSISTENT or (tensor.kept and tensor.role != "input") or not self.users[t] <= done

    def finish(self, state: State, op: int) -> State:
        it = self.problem.ops[op]
        done = state.done | {op}
        real = {t for t in (*it.writes, *it.outputs) if self.size[t]}
        here, dirty = state.here | {t for t in it.outputs if self.size[t]}, state.dirty | real
        here = frozenset(t for t in here if self.lives(t, done))
        return state._replace(done=done, here=here, dirty=frozenset(t for t in dirty if t in here), compute=None)

    def moves(self, state: State) -> Iterator[State]:
        """What can happen at once."""
        machine, busy, held = self.problem.machine, self.busy(state), self.held(state)
        for t in state.here:
            if t not in busy:
                if t not in state.dirty:
                    yield state._replace(here=state.here - {t})
                elif state.out is None:
                    yield state._replace(here=state.here - {t}, out=(t, machine.out_ns(self.size[t])))
        if state.into is None:
            for t, size in enumerate(self.size):
                exists = t not in self.maker or self.maker[t] in state.done
                leaving = state.out is not None and state.out[0] == t
                if (
                    size
                    and exists
                    and not leaving
                    and t not in state.here
                    and self.lives(t, state.done)
                    and self.fits(held | {t})
                ):
                    yield state._replace(into=(t, machine.in_ns(size)))
        if state.compute is None:
            for op, it in enumerate(self.problem.ops):
                ready = op not in state.done and self.before[op] <= state.done
                present = all(t in state.here or not self.size[t] for t in it.inputs)
                if ready and present and self.fits(held | set(it.outputs)):
                    started = state._replace(compute=(op, it.time_ns))
                    yield started if it.time_ns else self.finish(started, op)

    def advance(self, state: State) -> tuple[int, State] | None:
        """To the next moment at which something ends."""
        running = [stream for stream in (state.compute, state.into, state.out) if stream is not None]
        if not running:
            return None
        step = min(left for _, left in running)

        def later(stream: tuple[int, int] | None) -> tuple[int, int] | None:
            return None if stream is None else (stream[0], stream[1] - step)

        state = state._replace(compute=later(state.compute), into=later(state.into), out=later(state.out))
        if state.compute is not None and not state.compute[1]:
            state = self.finish(state, state.compute[0])
        if state.into is not None and not state.into[1]:
            state = state._replace(here=state.here | {state.into[0]}, into=None)
        if state.out is not None and not state.out[1]:
            state = state._replace(dirty=state.dirty - {state.out[0]}, out=None)
        return step, state

    def least(self, initial: frozenset[int], dirty: frozenset[int], below: int) -> int:
        """Least time from these residents back to them, `below` if none is less."""
        everything = frozenset(range(len(self.problem.ops)))
        queue = [(0, 0, State(frozenset(), initial, dirty))]
        seen: set[State] = set()
        number = 0
        while queue:
            now, _, state = heapq.heappop(queue)
            if now >= below:
                break
            if state in seen:
                continue
            seen.add(state)
            idle = state.compute is None and state.into is None and state.out is None
            if state.done == everything and idle:
                left = state.here & self.persistent
                if left == initial and state.dirty & left <= dirty:
                    return now
            following = [(now, after) for after in self.moves(state)]
            step = self.advance(state)
            if step is not None:
                following.append((now + step[0], step[1]))
            for then, after in following:
                if after not in seen:
                    number += 1
                    heapq.heappush(queue, (then, number, after))
        return below


def best_time(
    problem: SwapProblem,
    pool: tuple[Sequence[int], Sequence[int]] | None = None,
    order: Sequence[int] | None = None,
    initial: Sequence[int] | None = None,
) -> int | None:
    """Least ns of an iteration that can repeat, over all sets of initial residents unless `initial` is given."""
    search = Search(problem, pool, order)
    most = 10**9
    best = most
    used = sorted(t for t in search.persistent if search.users[t])
    sets = (
        [frozenset(initial)]
        if initial is not None
        else [frozenset(chosen) for size in range(len(used) + 1) for chosen in itertools.combinations(used, size)]
    )
    written = {t for op in problem.ops for t in op.writes}
    for residents in sets:
        if not search.fits(set(residents)):
            continue
        changing = sorted(residents & written)
        for size in range(len(changing) + 1):
            for dirty in itertools.combinations(changing, size):
                best = search.least(residents, frozenset(dirty), best)
    return None if best == most else best


def pools(problem: SwapProblem) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """All pools that fit, with as many objects of the last class as fit."""
    distinct = sorted({tensor.bytes for tensor in problem.tensors} - {0})
    for steps in itertools.product((0, 1), repeat=len(distinct) - 1):
        classes = tuple(itertools.accumulate((1, *steps)))
        largest = dict(zip(classes, distinct, strict=True))
        most = [sum(classes[distinct.index(t.bytes)] == q for t in problem.tensors if t.bytes) for q in sorted(largest)]
        for counts in itertools.product(*(range(1, number + 1) for number in most)):
            if sum(count * largest[q] for q, count in enumerate(counts, start=1)) <= problem.arena_bytes:
                yield classes, counts
