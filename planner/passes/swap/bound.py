"""Proven lower bounds on the time of an iteration: compute, transfer and capacity together, in one linear program.

Operators o_1 < o_2 < .. that must run one after another divide an iteration into windows. State k is the moment at
which o_k starts, or ends; state 0 is the start of the iteration, state m + 1 its end; window w lies between states w
and w + 1. An operator runs in a window of [lo, hi]: after what it waits for and before what waits for it. With a given
order lo = hi; otherwise this holds for every order.

For any plan and every tensor t let v be the share of its data on the device, h the up-to-date share on the host, and
in, out the share of a whole copy that is made in a window. All are 0..1 and satisfy

    somewhere   v_k + h_k >= 1                     in every state in which t surely exists and is still needed
    arrival     v_{k+1} <= v_k + in_k              unless t may be made in window k
    use         sum_{w = lo..hi} in_w >= 1 - v_lo  for every user of t that surely runs after its maker
    departure   h_{k+1} <= h_k + out_k;            h_{hi+1} <= sum_{w = lo..hi} out_w  for its maker and its writers
    steady      v_0 = v_{m+1}, h_0 = h_{m+1}       for persistent tensors; v_0 = 0, h = 1 for inputs of the step
    capacity    sum of bytes_t v_tk <= arena - bytes of all that o_k reads and makes, over all others; the arena at the
                ends of the iteration
    time        T_w >= sum of the time of operators in w,  T_w >= In_w + c Out_w,  T_w >= Out_w + c In_w

Where operators may be recomputed (`Repeats`), a tensor need not be anywhere as long as it can be recomputed. With re
the share of it that is recomputed in a window, at a ns of compute for all of it,

    arrival     v_{k+1} <= v_k + in_k + re_k, and so for use
    copy        in_k <= h_k + out_k                in place of `somewhere`, which still holds at the end of what is kept
    time        T_w >= sum of the time of operators in w + sum of a_t re_tw

and the `spared` bytes that an operator may overwrite are not counted in its capacity.

In_w is the work of copies in w and c = min(1, b/a - 1) for a machine that runs both directions at a/b speed each.
Minimise the sum of T_w. Allocators only lose bytes and a host limit only forbids plans, so the bound holds for all of
them. Tensors that are used in the same windows are one column, priced by their cheapest copy per byte. More windows
count more moments at which the bytes must fit.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Literal, NamedTuple

from treadle.planner.documents.plan import Scope
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.errors import InfeasibleError, LimitError
from treadle.planner.passes.swap.arrays import predecessors
from treadle.planner.passes.swap.problem import PERSISTENT, SwapProblem
from treadle.planner.search.bound import Argument, Bound
from treadle.planner.solver import Model, Status, Var, solve

EXACT: dict[Scope | None, Scope] = {
    "any order": "any order, this allocator, no early write-back",
    "this order": "this order, this allocator, no early write-back",
}
"""The scope of the exact search by that of the linear program, which also covers every allocator and early write-back;
the exact search covers neither."""
MOMENTS = 32
"""Operators at which the bytes are bounded, at most."""
COLUMNS = 40_000
"""Approximate limit of the variables of the linear program; moments are halved until it holds."""
SECONDS = 120.0
"""Time limit of the linear program, a safety net."""
SAFETY = 1e-6
"""Relative amount subtracted from the solver's value: ten times its tolerance."""


class Repeats(NamedTuple):
    """Recomputations in addition to copies. `again_ns` per tensor: the least compute time to recompute all of it, None
    where that is impossible; tensors that one run makes share its time by their bytes. `spared` per operator: bytes
    that its results may overwrite."""

    again_ns: tuple[Fraction | None, ...]
    spared: tuple[int, ...]


SENTENCES = {
    "compute": "every operator runs once, one at a time",
    "moved": (
        "of what is needed later only so much fits the memory, the rest has to be copied out and back, and the copies "
        "of each stretch of the iteration take their time: a linear program, solved to proved optimality"
    ),
    "compute repeated": "every operator runs at least once, by its fastest call, one at a time",
    "moved or repeated": (
        "of what is needed later only so much fits the memory, the rest has to be copied out and back or recomputed, "
        "and the copies and operators of each stretch of the iteration take their time: a linear program, solved to "
        "proved optimality"
    ),
    "exact": "a model of all orders, pools and copies, searched by CP-SAT",
}
"""The argument of each kind of bound."""


def sentence(bound: Bound) -> str:
    """Why `bound` holds, in words."""
    return bound.argument.printed(SENTENCES)


def lower_bound(
    problem: SwapProblem,
    order: Sequence[int] | None = None,
    moments: int = MOMENTS,
    *,
    time_limit_s: float = SECONDS,
    stop: threading.Event | None = None,
) -> Bound:
    """The larger of the compute bound and the value of the linear program.

    order: bound only plans that run the operators in this order; by default all. If its time limit or `stop` ends the
    linear program, the compute bound is left; else the result is deterministic. Takes seconds for 10,000 operators.
    Raises InfeasibleError for a single operator that does not fit the memory.
    """
    return bound_with_repeats(problem, None, order, moments, time_limit_s=time_limit_s, stop=stop)[0]


def bound_with_repeats(
    problem: SwapProblem,
    repeats: Repeats | None,
    order: Sequence[int] | None = None,
    moments: int = MOMENTS,
    *,
    time_limit_s: float = SECONDS,
    stop: threading.Event | None = None,
) -> tuple[Bound, dict[int, float]]:
    """The same where operators may also be recomputed, and the share of each tensor that the linear program recomputes.

    With `repeats` the problem lists what operators surely read, at the least time and scratch they may have.
    """
    _fits(problem, repeats)
    scope: Scope = "any order" if order is None else "this order"
    compute, moved = ("compute", "moved") if repeats is None else ("compute repeated", "moved or repeated")
    best = Bound(problem.ideal_ns, Argument(compute), scope)
    graph = _Graph.of(problem, order)
    count = min(moments, len(graph.chain))
    ends = time.monotonic() + time_limit_s
    while count >= 1 and not _ended(ends, stop):
        program = _Program(problem, graph.cut(count), repeats)
        if len(program.model.lower) <= COLUMNS or count == 1:
            if _ended(ends, stop):
                break
            value = program.solve(ends - time.monotonic(), stop)
            if value is not None and value > best.time_ns:
                best = Bound(value, Argument(moved), scope)
            return best, program.shares
        count //= 2
    return best, {}


def _ended(ends: float, stop: threading.Event | None) -> bool:
    return time.monotonic() > ends or (stop is not None and stop.is_set())


def overlap_cost(problem: SwapProblem) -> Fraction:
    """Cost of a ns of work during a copy in the other direction; 1 where alternating is as fast."""
    slow, whole = problem.machine.together
    return min(Fraction(1), Fraction(whole, slow) - 1)


def _fits(problem: SwapProblem, repeats: Repeats | None = None) -> None:
    room = problem.arena_bytes
    for at, op in enumerate(problem.ops):
        needs = problem.working_set(at) - (repeats.spared[at] if repeats else 0)
        if needs > room:
            raise InfeasibleError(
                f"operator {op.id} reads and makes {format_bytes(needs)}, the memory without reserve and scratch is "
                f"{format_bytes(max(0, room))}; no plan exists below {format_bytes(needs)}"
            )


class _State(NamedTuple):
    """The moment at which `op` starts or ends."""

    op: int
    ends: bool


@dataclass(frozen=True)
class _Cut:
    """States 1..m, and the windows lo, hi of each operator."""

    states: list[_State]
    lo: list[int]
    hi: list[int]


@dataclass(frozen=True)
class _Graph:
    """Dependencies of the operators, and a `chain` of those that follow one another in every order in question."""

    problem: SwapProblem
    before: list[list[int]]
    after: list[list[int]]
    topological: list[int]
    chain: list[int]

    @staticmethod
    def of(problem: SwapProblem, order: Sequence[int] | None) -> _Graph:
        n = len(problem.ops)
        before: list[list[int]] = [[] for _ in range(n)]
        if order is not None:
            for first, second in pairwise(order):
                before[second].append(first)
        else:
            before = predecessors(problem)
        after: list[list[int]] = [[] for _ in range(n)]
        for at, others in enumerate(before):
            for other in others:
                after[other].append(at)
        topological = list(range(n)) if order is None else list(order)
        return _Graph(problem, before, after, topological, _heaviest_path(problem, before, topological))

    def cut(self, count: int) -> _Cut:
        """Up to `count` operators of the chain, spread evenly, at which most bytes are used; and both ends."""
        weights = [self.problem.working_set(op) for op in self.chain]
        chosen = _spread(weights, count)
        states = [_State(self.chain[0], False)]
        states += [_State(self.chain[at], False) for at in chosen if at]
        states.append(_State(self.chain[-1], True))
        n = len(self.problem.ops)
        lo, hi = [0] * n, [len(states)] * n
        for k, state in enumerate(states, start=1):
            for op in self._reach(state.op, self.after):
                lo[op] = k
            if not state.ends:
                lo[state.op] = k
        for k in range(len(states), 0, -1):
            state = states[k - 1]
            for op in self._reach(state.op, self.before):
                hi[op] = k - 1
            if state.ends:
                hi[state.op] = k - 1
        return _Cut(states, lo, hi)

    def _reach(self, start: int, edges: list[list[int]]) -> list[int]:
        seen = bytearray(len(edges))
        seen[start] = 1
        stack, found = [start], []
        while stack:
            for other in edges[stack.pop()]:
                if not seen[other]:
                    seen[other] = 1
                    stack.append(other)
                    found.append(other)
        return found


def _heaviest_path(problem: SwapProblem, before: list[list[int]], topological: list[int]) -> list[int]:
    """The path of most operators; of those the one of most bytes."""
    best: dict[int, tuple[int, int]] = {}
    came: dict[int, int] = {}
    for op in topological:
        longest = max(((best[other], -other) for other in before[op]), default=None)
        count, size = (0, 0) if longest is None else longest[0]
        if longest is not None:
            came[op] = -longest[1]
        best[op] = count + 1, size + problem.working_set(op)
    last = max(best, key=lambda op: (best[op], -op))
    path = [last]
    while path[-1] in came:
        path.append(came[path[-1]])
    return path[::-1]


def _spread(weights: list[int], count: int) -> list[int]:
    """The place of the largest weight in each of `count` stretches of equal length, the first of equals."""
    n = len(weights)
    count = min(count, n)
    edges = [round(at * n / count) for at in range(count + 1)]
    return [max(range(a, b), key=lambda at: (weights[at], -at)) for a, b in pairwise(edges)]


class _Pattern(NamedTuple):
    """What all tensors of one column share; pairs are windows lo, hi."""

    kind: Literal["persistent", "input", "made"]
    kept: bool
    maker: tuple[int, int]
    uses: tuple[tuple[int, int], ...]
    writes: tuple[tuple[int, int], ...]
    held: tuple[int, ...]
    """States whose operator reads or makes it."""
    again: int
    """-1 where it cannot be recomputed; else a class of about equal time per byte."""


@dataclass
class _Column:
    bytes: int = 0
    in_ns: Fraction = Fraction(0)
    """Work per byte of the cheapest of its tensors."""
    out_ns: Fraction = Fraction(0)
    again_ns: Fraction = Fraction(0)
    tensors: list[int] = field(default_factory=list)


@dataclass
class _Program:
    """The linear program; times in units of `unit`, bytes in units of the arena."""

    problem: SwapProblem
    cut: _Cut
    repeats: Repeats | None = None
    model: Model = field(default_factory=lambda: Model("swap bound"))
    shares: dict[int, float] = field(default_factory=dict)
    """Once solved: the recomputed share of each tensor that can be recomputed."""

    def __post_init__(self) -> None:
        problem, cut = self.problem, self.cut
        self.last = len(cut.states) + 1
        """The state at the end."""
        self.unit = float(max(1, problem.ideal_ns))
        self.into: list[list[tuple[Var, float]]] = [[] for _ in range(self.last)]
        self.out: list[list[tuple[Var, float]]] = [[] for _ in range(self.last)]
        self.again: list[list[tuple[Var, float]]] = [[] for _ in range(self.last)]
        self.remade: list[tuple[_Column, list[Var]]] = []
        self.room: list[list[tuple[Var, float]]] = [[] for _ in range(self.last + 1)]
        for pattern, column in sorted(_columns(problem, cut, self.repeats).items()):
            self._tensors(pattern, column)
        room = problem.arena_bytes
        arena = max(1, room)
        spared = self.repeats.spared if self.repeats else (0,) * len(problem.ops)
        busy = [0, *(problem.working_set(state.op) - spared[state.op] for state in cut.states), 0]
        for k, held in enumerate(busy):
            if self.room[k]:
                left = room - held
                self.model.add_linear([(v, size / arena) for v, size in self.room[k]], ub=left / arena)
        self._times()

    def solve(self, time_limit_s: float = SECONDS, stop: threading.Event | None = None) -> int | None:
        """The proved value in ns, rounded up as times are whole; None where the solver gave up or was stopped."""
        try:
            solution = solve(self.model, backend="highs", time_limit_s=min(SECONDS, time_limit_s), stop=stop)
        except LimitError:
            if stop is None or not stop.is_set():
                raise
            return None
        if solution.status is not Status.OPTIMAL or solution.bound is None:
            return None
        for column, variables in self.remade:
            share = sum(float(solution.values[int(var)]) for var in variables)
            self.shares.update(dict.fromkeys(column.tensors, share))
        return math.ceil(float(solution.bound) * self.unit * (1 - SAFETY))

    def _tensors(self, pattern: _Pattern, column: _Column) -> None:
        model, last = self.model, self.last
        dirty = pattern.kind == "made" or bool(pattern.writes)
        first = pattern.maker[1] + 1 if pattern.kind == "made" else 0
        remade = pattern.again >= 0
        final = last if pattern.kept else max((lo for lo, _ in pattern.uses), default=-1)
        if first > final:
            return
        one = {k for k in pattern.held if first <= k}
        here: dict[int, Var] = {}
        host: dict[int, Var] = {}
        for k in range(first, final + 1):
            if k == last and pattern.kind == "persistent":
                here[k] = here[0]
                self.room[k].append((here[k], float(column.bytes)))
                if dirty:
                    host[k] = host[0]
                continue
            start = pattern.kind == "input" and k == 0
            here[k] = model.continuous(1.0 if k in one else 0.0, 0.0 if start else 1.0)
            if k not in one:
                self.room[k].append((here[k], float(column.bytes)))
            if dirty:
                host[k] = model.continuous(0.0, 1.0)
                if not remade or k == last:
                    model.add_linear([(here[k], 1), (host[k], 1)], lb=1)
        into: dict[int, Var] = {}
        out: dict[int, Var] = {}

        anew: dict[int, Var] = {}

        def share(w: int, shares: dict[int, Var], work: list[list[tuple[Var, float]]], ns: Fraction) -> Var:
            if w not in shares:
                shares[w] = model.continuous(0.0)
                work[w].append((shares[w], float(ns * column.bytes) / self.unit))
            return shares[w]

        def copy_in(w: int) -> Var:
            return share(w, into, self.into, column.in_ns)

        def copy_out(w: int) -> Var:
            return share(w, out, self.out, column.out_ns)

        def recompute(w: int) -> list[Var]:
            return [share(w, anew, self.again, column.again_ns)] if remade else []

        for k in range(first, final):
            model.add_linear(
                [(here[k + 1], 1), (here[k], -1), (copy_in(k), -1), *((var, -1) for var in recompute(k))], ub=0
            )
            if dirty:
                model.add_linear([(host[k + 1], 1), (host[k], -1), (copy_out(k), -1)], ub=0)
        for lo, hi in pattern.uses:
            if first <= lo <= final:
                arriving = [var for w in range(lo, hi + 1) for var in (copy_in(w), *recompute(w))]
                model.add_linear([(here[lo], 1), *((var, 1) for var in arriving)], lb=1)
        for lo, hi in (*pattern.writes, *((pattern.maker,) if pattern.kind == "made" else ())):
            if hi + 1 in host:
                model.add_linear([(host[hi + 1], 1), *((copy_out(w), -1) for w in range(lo, hi + 1))], ub=0)
        if remade:
            for w, var in into.items():
                if w in host:
                    model.add_linear([(var, 1), (host[w], -1), (copy_out(w), -1)], ub=0)
            self.remade.append((column, list(anew.values())))

    def _times(self) -> None:
        model, cut = self.model, self.cut
        floating: dict[tuple[int, int], int] = defaultdict(int)
        for at, op in enumerate(self.problem.ops):
            floating[cut.lo[at], cut.hi[at]] += op.time_ns
        busy: list[float] = [0.0] * self.last
        shares: list[list[tuple[Var, float]]] = [[] for _ in range(self.last)]
        for (lo, hi), time_ns in sorted(floating.items()):
            if lo == hi:
                busy[lo] += time_ns / self.unit
                continue
            parts = [model.continuous(0.0) for _ in range(lo, hi + 1)]
            model.add_linear([(part, 1) for part in parts], lb=time_ns / self.unit)
            for w, part in enumerate(parts, start=lo):
                shares[w].append((part, -1.0))
        cost = float(overlap_cost(self.problem))
        takes = []
        for w in range(self.last):
            time = model.continuous(0.0)
            takes.append(time)
            model.add_linear([(time, 1), *shares[w], *((var, -ns) for var, ns in self.again[w])], lb=busy[w])
            for mine, other in ((self.into[w], self.out[w]), (self.out[w], self.into[w])):
                if mine:
                    work = [*((var, -ns) for var, ns in mine), *((var, -ns * cost) for var, ns in other if cost)]
                    model.add_linear([(time, 1), *work], lb=0)
        model.minimize([(time, 1) for time in takes])


def _columns(problem: SwapProblem, cut: _Cut, repeats: Repeats | None) -> dict[_Pattern, _Column]:
    makers: dict[int, int] = {}
    users: dict[int, set[tuple[int, int]]] = defaultdict(set)
    writers: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for at, op in enumerate(problem.ops):
        window = cut.lo[at], cut.hi[at]
        for t in op.inputs:
            users[t].add(window)
        for t in op.writes:
            writers[t].add(window)
        for t in op.outputs:
            makers[t] = at
    held: dict[int, list[int]] = defaultdict(list)
    for k, state in enumerate(cut.states, start=1):
        for t in (*problem.ops[state.op].inputs, *problem.ops[state.op].outputs):
            held[t].append(k)
    columns: dict[_Pattern, _Column] = defaultdict(_Column)
    machine = problem.machine
    for t, tensor in enumerate(problem.tensors):
        if not tensor.bytes or (t not in users and t not in makers):
            continue
        made = t in makers
        if not made and tensor.role not in (*PERSISTENT, "input"):
            continue
        again = repeats.again_ns[t] if repeats and made and t not in writers else None
        maker = (cut.lo[makers[t]], cut.hi[makers[t]]) if made else (-1, -1)
        pattern = _Pattern(
            kind="made" if made else "input" if tensor.role == "input" else "persistent",
            kept=tensor.kept and tensor.role != "input",
            maker=maker,
            uses=tuple(sorted(window for window in users[t] if window[0] > maker[1])),
            writes=tuple(sorted(writers[t])),
            held=tuple(held[t]),
            again=-1 if again is None else int(again * 2**20 / tensor.bytes).bit_length(),
        )
        column = columns[pattern]
        costs = (
            Fraction(machine.in_ns(tensor.bytes), tensor.bytes),
            Fraction(machine.out_ns(tensor.bytes), tensor.bytes),
        )
        column.in_ns = min(column.in_ns, costs[0]) if column.bytes else costs[0]
        column.out_ns = min(column.out_ns, costs[1]) if column.bytes else costs[1]
        if again is not None:
            per_byte = again / tensor.bytes
            column.again_ns = min(column.again_ns, per_byte) if column.bytes else per_byte
            column.tensors.append(t)
        column.bytes += tensor.bytes
    return columns
