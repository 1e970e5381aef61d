"""The best plan of a small graph: order, pool and copies in one model of CP-SAT.

Operators o, non-empty tensors t, residencies c = 0, 1, .. of t on the device: one for each user of t, and two more for
a persistent tensor, so that the model has every plan. Times are counted in the largest unit in which all are whole;
where operators take no time, in 1/K of it, and such an operator takes one of these, so that its tensors are held at
some moment.

    S_o                 start of o
    p_tc                residency c exists;                   p_t,c+1 -> p_tc
    b_tc, r_tc          its start, and when t can be used;    r = b + in_t where a copy begins it
    x_tc, e_tc          when t leaves, and when its place is free;   e = x + out_t with a copy (q_tc = 1), else e >= x
    a_utc               user u of t is in residency c;        sum_c a_utc = 1,  a_utc -> p_tc
    d_tc                the host has t as it is when residency c ends without a copy
    f_tc                residency c lasts to the end;         e_tc = T
    i_t                 the persistent t is on the device when the iteration starts
    g_kl, n_kl          sizes k..l are a class, of n objects (allocator pool);   y_tc an address (allocator offset)

    minimise T
    E1  T >= S_o + time_o,  T >= e_tc;    no overlap on each of the streams compute, in and out
    E2  S_j >= S_i + time_i for i before j
    E3  a_utc -> r_tc <= S_u,  S_u + time_u <= x_tc;   b_t0 = S_maker for a made tensor, no copy begins that
    E4  p_t,c+1 -> b_t,c+1 >= e_tc;       each residency has a user, or lasts to the end, or is the first and copied out
    E5  i_t <-> the first residency starts with the iteration, at 0;   sum_c f_tc = i_t
    E6  one that is not the last, or of a kept tensor:  q_tc or d_tc or f_tc;   d_tc -> no writer in residency c
        d_t0 is false for a made tensor;  i_t, d_t0, f_tc -> d_tc: an iteration finds on the host what the last one left
    E7  memory: sum of bytes at any moment <= arena (bytes);  no two rectangles (time, address) overlap, an initial
        resident ends where it starts (offset);  residencies of sizes k..l at any moment <= n_kl where g_kl,
        sum n_kl size_l <= arena, every size in one class (pool). Objects can be assigned first come, first served,
        since an interval graph needs no more colours than it has intervals at one moment.
    E8  copies run at full speed, T >= In + c Out,  T >= Out + c In  with all work in and out (bound.py)
    E9  h_t: t is copied, a copy begins or ends some residency -> h_t;   sum bytes_t h_t <= host, if it has a limit

The value of the model is a lower bound of every plan, since copies that slow each other down only take longer. Its plan
is replayed, and certified as the optimum only if the replay takes no longer than the bound.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from treadle.planner.documents.plan import Scope
from treadle.planner.errors import InputError
from treadle.planner.passes.swap.arrays import Nodes, arrays_of, predecessors
from treadle.planner.passes.swap.bound import EXACT, lower_bound
from treadle.planner.passes.swap.decisions import Allocator
from treadle.planner.passes.swap.evaluate import time_ns as planned_ns
from treadle.planner.passes.swap.layout import Pool, class_of_tensor, laid_out, least_pool, needs, pool_bytes
from treadle.planner.passes.swap.problem import PERSISTENT, SwapProblem
from treadle.planner.passes.swap.replay import replay
from treadle.planner.passes.swap.spans import plan_spans
from treadle.planner.passes.swap.timed_residencies import Ending, TimedResidency, addresses, nodes_of, objects, tokens
from treadle.planner.passes.swap.two_pass import plan_once, plan_pool
from treadle.planner.solver.cp_sat import configured, search
from treadle.planner.solver.interface import Options, Reporter

MOST_SIZES = 8
"""Distinct tensor sizes up to which classes are searched."""
WORK = 60.0
"""Deterministic seconds of CP-SAT."""


@dataclass(frozen=True)
class Exact:
    """A plan, if one was found: an order, a pool (allocator pool), the nodes and their time.

    No plan in `scope` takes less than `bound_ns`, and none exists if `infeasible`. `optimal`: the plan takes no more
    than the bound.
    """

    order: tuple[int, ...] = ()
    pool: Pool | None = None
    nodes: Nodes | None = None
    time_ns: int | None = None
    bound_ns: int = 0
    infeasible: bool = False
    limit_fired: bool = False
    scope: Scope | None = "any order"

    @property
    def optimal(self) -> bool:
        return self.time_ns is not None and self.time_ns <= self.bound_ns


def solve_exact(
    problem: SwapProblem,
    allocator: Allocator = "pool",
    *,
    order: Sequence[int] | None = None,
    pool: Pool | None = None,
    initial: Sequence[int] | None = None,
    below_ns: int | None = None,
    work: float = WORK,
    seed: int = 0,
    time_limit_s: float | None = None,
    stop: threading.Event | None = None,
) -> Exact:
    """The fastest plan found with `work` deterministic seconds, and how fast any could be.

    order, pool, initial: fixed parts of the plan; by default all are searched. below_ns: only faster plans are searched
    for; without one the bound is at most this. time_limit_s: a safety net in wall clock; `limit_fired` states that it
    ended the search. Raises InputError for more than MOST_SIZES sizes without a `pool`, InfeasibleError for a single
    operator that does not fit.
    """
    from ortools.sat.python import cp_model

    least = lower_bound(problem, order, time_limit_s=math.inf if time_limit_s is None else time_limit_s, stop=stop)
    if below_ns is not None and least.time_ns >= below_ns:
        return Exact(bound_ns=below_ns, scope=least.scope)
    most = below_ns - 1 if below_ns is not None else _known(problem, allocator, order, pool, initial)
    model = _Model(problem, allocator, order, pool, initial, least.time_ns, most)
    options = Options(0.0, work, None, time_limit_s, seed, 1, Reporter(None, 0))
    solver = configured(options)
    status = search(solver, model.cp, options, stop or threading.Event())
    bound = least.time_ns
    if status == cp_model.INFEASIBLE and below_ns is not None:
        bound = below_ns
    elif status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN):
        bound = max(bound, model.whole(solver.best_objective_bound))
    finished = status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    ended = Exact(
        bound_ns=bound,
        infeasible=status == cp_model.INFEASIBLE and below_ns is None,
        limit_fired=not finished and solver.deterministic_time < 0.99 * work,
        scope=least.scope if bound <= least.time_ns else EXACT[least.scope],
    )
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return ended
    plan = model.plan(solver.response_proto.solution)
    time_ns = replay(model.arrays, plan[2]).makespan_ns
    if below_ns is not None and time_ns >= below_ns:
        return replace(ended, bound_ns=min(bound, below_ns))
    return replace(ended, order=plan[0], pool=plan[1], nodes=plan[2], time_ns=time_ns)


def _known(
    problem: SwapProblem,
    allocator: Allocator,
    order: Sequence[int] | None,
    pool: Pool | None,
    initial: Sequence[int] | None,
) -> int | None:
    """The time of a plan of the model, if the planner finds one."""
    arrays = arrays_of(problem)
    line = range(len(problem.ops)) if order is None else order
    nodes = None
    if allocator == "pool":
        pool = least_pool(arrays) if pool is None else pool
        if pool_bytes(arrays.sizes, pool) <= problem.arena_bytes and all(pool.counts):
            nodes = plan_pool(arrays, line, pool) if initial is None else None
            nodes = plan_once(arrays, line, pool) if initial is not None and not initial else nodes
    elif initial is None:
        nodes = plan_spans(arrays, line, problem.arena_bytes, allocator)
    return None if nodes is None else planned_ns(arrays, nodes)


@dataclass
class _Residency:
    """Variables of one residency; literals may be constants."""

    present: Any
    begins: Any
    """Whether a copy begins it."""
    start: Any
    ready: Any
    leaves: Any
    end: Any
    copied: Any
    """Whether a copy to the host ends it."""
    clean: Any
    lasts: Any
    users: dict[int, Any] = field(default_factory=dict)
    address: Any = None


class _Model:
    def __init__(
        self,
        problem: SwapProblem,
        allocator: Allocator,
        order: Sequence[int] | None,
        pool: Pool | None,
        initial: Sequence[int] | None,
        least_ns: int,
        most_ns: int | None,
    ) -> None:
        from ortools.sat.python import cp_model

        self.problem, self.allocator, self.pool, self.initial = problem, allocator, pool, initial
        self.cp = cp_model.CpModel()
        self.arrays = arrays_of(problem)
        self.sizes = problem.object_sizes
        self.unmeasured = sum(op.time_ns == 0 for op in problem.ops)
        slow, whole = problem.machine.together
        self.scale = (len(problem.ops) + 1 if self.unmeasured else 1) * (slow if slow < whole else 1)
        copied = [t for op in problem.ops for t in (*op.inputs, *op.outputs)]
        works = [*self.arrays.in_ns[copied].tolist(), *self.arrays.out_ns[copied].tolist()]
        self.unit = max(1, math.gcd(*works, *(op.time_ns for op in problem.ops)))
        self.makers = {t: at for at, op in enumerate(problem.ops) for t in op.outputs}
        self.users: dict[int, list[int]] = defaultdict(list)
        for at, op in enumerate(problem.ops):
            for t in (*op.inputs, *op.outputs):
                self.users[t].append(at)
        most_ns = self._longest() if most_ns is None else most_ns
        self.horizon = self.scale * -(-most_ns // self.unit) + self.unmeasured
        self.true, self.false = self.cp.new_constant(1), self.cp.new_constant(0)
        self.time = self.cp.new_int_var(min(self.scale * least_ns // self.unit, self.horizon), self.horizon, "T")
        self.moving: dict[str, list[tuple[Any, Any, Any, int]]] = {"in": [], "out": []}
        self._operators(order)
        self.stays = {t: self._tensor(t) for t in sorted(self.users) if problem.tensors[t].bytes}
        self.counts: dict[tuple[int, int], Any] = {}
        self.classes: dict[tuple[int, int], Any] = {}
        {"pool": self._pool, "bytes": self._bytes, "offset": self._offset}[allocator]()
        self._streams()
        self._host()
        self.cp.minimize(self.time)

    def _longest(self) -> int:
        """Time of everything in sequence, with all possible copies."""
        machine, slow, whole = self.problem.machine, *self.problem.machine.together
        copies = sum(
            (len(users) + 1) * (machine.in_ns(size) + machine.out_ns(size))
            for t, users in self.users.items()
            if (size := self.problem.tensors[t].bytes)
        )
        return self.problem.ideal_ns + -(-copies * whole // slow) + 1

    def length(self, op: int) -> int:
        return max(min(1, self.unmeasured), self.problem.ops[op].time_ns * self.scale // self.unit)

    def _when(self) -> Any:
        return self.cp.new_int_var(0, self.horizon, "")

    def _operators(self, order: Sequence[int] | None) -> None:
        cp, ops = self.cp, range(len(self.problem.ops))
        self.starts = [self._when() for _ in ops]
        cp.add_no_overlap([cp.new_fixed_size_interval_var(self.starts[op], self.length(op), "") for op in ops])
        before = predecessors(self.problem)
        if order is not None:
            before = [[] for _ in ops]
            for first, second in pairwise(order):
                before[second].append(first)
        for op in ops:
            cp.add(self.time >= self.starts[op] + self.length(op))
            for other in before[op]:
                cp.add(self.starts[op] >= self.starts[other] + self.length(other))

    def _tensor(self, t: int) -> list[_Residency]:
        cp, tensor = self.cp, self.problem.tensors[t]
        persistent, made = tensor.role in PERSISTENT, t in self.makers
        kept = tensor.kept and tensor.role != "input"
        resident = self.false
        if persistent:
            resident = cp.new_bool_var("")
            if self.initial is not None:
                cp.add(resident == int(t in self.initial))
        found: list[_Residency] = []
        for c in range(len(self.users[t]) + 2 * persistent):
            first = c == 0
            present = self.true if first and not persistent else cp.new_bool_var("")
            begins = present
            if first:
                begins = self.false if made else self.true if not persistent else cp.new_bool_var("")
                if persistent:
                    cp.add(begins + resident == present)
            lasts = cp.new_bool_var("") if kept else self.false
            stay = _Residency(
                present=present,
                begins=begins,
                start=self.starts[self.makers[t]] if first and made else self._when(),
                ready=self._when(),
                leaves=self._when(),
                end=self._when(),
                copied=cp.new_bool_var(""),
                clean=self.false if first and made else cp.new_bool_var(""),
                lasts=lasts,
            )
            cp.add_implication(stay.copied, present)
            cp.add_implication(lasts, present)
            if first and persistent:
                cp.add(stay.start == 0).only_enforce_if(resident)
            cp.add(stay.ready >= stay.start)
            cp.add(stay.leaves >= stay.ready)
            cp.add(stay.end >= stay.leaves)
            cp.add(self.time >= stay.end).only_enforce_if(present)
            cp.add(stay.end == self.time).only_enforce_if(lasts)
            cp.add(stay.copied + lasts <= 1)
            self._copy("in", t, stay.start, stay.ready, begins)
            self._copy("out", t, stay.leaves, stay.end, stay.copied)
            for at in self.users[t]:
                if first and made and at == self.makers[t]:
                    stay.users[at] = self.true
                elif made and at == self.makers[t]:
                    stay.users[at] = self.false
                else:
                    stay.users[at] = cp.new_bool_var("")
                here = stay.users[at]
                cp.add_implication(here, present)
                if not (made and at == self.makers[t]):
                    cp.add(self.starts[at] >= stay.ready).only_enforce_if(here)
                cp.add(stay.leaves >= self.starts[at] + self.length(at)).only_enforce_if(here)
                if t in self.problem.ops[at].writes:
                    cp.add_implication(here, stay.clean.Not())
            idle = [lasts, stay.copied] if first else [lasts] if persistent else []
            cp.add_bool_or([*stay.users.values(), *idle, present.Not()])
            if found:
                before = found[-1]
                cp.add_implication(present, before.present)
                cp.add(stay.start >= before.end).only_enforce_if(present)
                cp.add_implication(before.lasts, present.Not())
                cp.add_bool_or([before.copied, before.clean, present.Not()])
            found.append(stay)
        for at in self.users[t]:
            cp.add_exactly_one([stay.users[at] for stay in found])
        if kept:
            for stay, following in zip(found, [*found[1:], None], strict=True):
                more = [] if following is None else [following.present]
                cp.add_bool_or([stay.copied, stay.clean, stay.lasts, *more, stay.present.Not()])
        if persistent:
            cp.add(sum(stay.lasts for stay in found) == resident)
            for stay in found:
                cp.add_bool_or([resident.Not(), found[0].clean.Not(), stay.lasts.Not(), stay.clean])
        return found

    def _copy(self, stream: str, t: int, start: Any, end: Any, present: Any) -> None:
        """A copy of t on a stream, of at least its work."""
        machine, size = self.problem.machine, self.problem.tensors[t].bytes
        work = self.scale * (machine.in_ns(size) if stream == "in" else machine.out_ns(size)) // self.unit
        self.moving[stream].append((start, end, present, work))

    def _streams(self) -> None:
        """E1, E8."""
        cp, (slow, whole) = self.cp, self.problem.machine.together
        for copies in self.moving.values():
            cp.add_no_overlap(
                [
                    cp.new_optional_fixed_size_interval_var(start, work, present, "")
                    for start, _, present, work in copies
                ]
            )
            for start, end, present, work in copies:
                cp.add(end == start + work).only_enforce_if(present)
        total = {
            stream: sum(work * present for _, _, present, work in copies) for stream, copies in self.moving.items()
        }
        for mine, other in (("in", "out"), ("out", "in")):
            if 2 * slow <= whole:
                cp.add(self.time >= total[mine] + total[other])
            else:
                cp.add(slow * self.time >= slow * total[mine] + (whole - slow) * total[other])

    def _host(self) -> None:
        """E9: every copied tensor has a place of its own on the host."""
        limit = self.problem.machine.host_bytes
        if limit is None:
            return
        taken = []
        for t, stays in self.stays.items():
            copied = self.cp.new_bool_var("")
            for stay in stays:
                self.cp.add_implication(stay.begins, copied)
                self.cp.add_implication(stay.copied, copied)
            taken.append(self.problem.tensors[t].bytes * copied)
        self.cp.add(sum(taken) <= limit)

    def _interval(self, stay: _Residency) -> Any:
        length = self._when()
        return self.cp.new_optional_interval_var(stay.start, length, stay.end, stay.present, "")

    def _all(self) -> list[tuple[int, _Residency]]:
        return [(t, stay) for t, stays in self.stays.items() for stay in stays]

    def _bytes(self) -> None:
        intervals = [(self._interval(stay), self.problem.tensors[t].bytes) for t, stay in self._all()]
        self.cp.add_cumulative([i for i, _ in intervals], [size for _, size in intervals], self.problem.arena_bytes)

    def _offset(self) -> None:
        cp = self.cp
        across, along = [], []
        for t, stays in self.stays.items():
            size = self.problem.tensors[t].bytes
            for stay in stays:
                stay.address = cp.new_int_var(0, self.problem.arena_bytes - size, "")
                across.append(self._interval(stay))
                along.append(cp.new_optional_fixed_size_interval_var(stay.address, size, stay.present, ""))
                if self.problem.tensors[t].role in PERSISTENT:
                    cp.add(stay.address == stays[0].address).only_enforce_if(stay.lasts)
        cp.add_no_overlap_2d(across, along)
        intervals = [self.problem.tensors[t].bytes for t, _ in self._all()]
        cp.add_cumulative(across, intervals, self.problem.arena_bytes)

    def _pool(self) -> None:
        """E7 for classes: g_kl for every run k..l of sizes, one of which holds each size."""
        cp, count = self.cp, len(self.sizes)
        if self.pool is None and count > MOST_SIZES:
            raise InputError(f"{count} sizes of tensors, expected at most {MOST_SIZES} for the exact method")
        number = {size: k for k, size in enumerate(self.sizes)}
        intervals: list[list[Any]] = [[] for _ in self.sizes]
        for t, stay in self._all():
            intervals[number[self.problem.object_bytes(t)]].append(self._interval(stay))
        needed = needs(self.arrays)
        runs = [(k, end) for k in range(count) for end in range(k, count)]
        if self.pool is not None:
            runs = [
                (self.pool.classes.index(q), count - 1 - self.pool.classes[::-1].index(q))
                for q in sorted(set(self.pool.classes))
            ]
        used: list[Any] = []
        for k, end in runs:
            members = [interval for same in intervals[k : end + 1] for interval in same]
            chosen = self.classes[k, end] = self.true if self.pool is not None else cp.new_bool_var("")
            limit = self.counts[k, end] = cp.new_int_var(1, max(1, len(members)), "")
            cp.add_cumulative(members, [1] * len(members), limit)
            cp.add(limit >= int(needed[:, k : end + 1].sum(axis=1).max(initial=0))).only_enforce_if(chosen)
            if self.pool is not None:
                cp.add(limit <= self.pool.counts[self.pool.classes[k] - 1])
                continue
            taken = cp.new_int_var(0, self.problem.arena_bytes, "")
            cp.add(taken >= limit * self.sizes[end]).only_enforce_if(chosen)
            cp.add(limit == max(1, len(members))).only_enforce_if(chosen.Not())
            used.append(taken)
        if self.pool is None and used:
            cp.add(sum(used) <= self.problem.arena_bytes)
            for size in range(count):
                cp.add_exactly_one([self.classes[k, end] for k, end in runs if k <= size <= end])

    def whole(self, value: float) -> int:
        """The bound in ns for one of the objective, which includes up to `unmeasured` for operators of no time."""
        if not math.isfinite(value):
            return 0
        return -((self.unmeasured - math.ceil(value - 1e-6)) * self.unit // self.scale)

    def plan(self, values: Sequence[int]) -> tuple[tuple[int, ...], Pool | None, Nodes]:
        """The plan that a solution stands for. values: of all variables, by index."""
        problem, arrays = self.problem, self.arrays

        def value(var: Any) -> int:
            return int(values[var.index])

        starts = [value(start) for start in self.starts]
        order = sorted(range(len(starts)), key=lambda op: starts[op])
        stays: list[TimedResidency] = []
        at: list[int] = []
        for t, found in self.stays.items():
            present = [stay for stay in found if value(stay.present)]
            for c, stay in enumerate(present):
                made = stay is found[0] and t in self.makers
                needed = c + 1 < len(present) or problem.tensors[t].kept
                ends: Ending = (
                    "out" if value(stay.copied) else "end" if value(stay.lasts) else "drop" if needed else "dead"
                )
                users = tuple(op for op, here in stay.users.items() if value(here))
                end = value(stay.end)
                if ends == "dead":
                    end = max(starts[op] + self.length(op) for op in users)
                stays.append(
                    TimedResidency(
                        tensor=t,
                        begins="made" if made else "in" if value(stay.begins) else "start",
                        ends=ends,
                        start=value(stay.start),
                        ready=value(stay.ready),
                        leaves=value(stay.leaves),
                        end=end,
                        users=users,
                    )
                )
                at.append(0 if stay.address is None else value(stay.address))
        size = [tensor.bytes for tensor in problem.tensors]
        pool = None
        if self.allocator == "pool":
            pool = self.pool or self._chosen_pool(value)
            layout = laid_out(self.sizes, pool)
            class_of = class_of_tensor(arrays, pool).tolist()
            space = objects(stays, class_of, [q.object_bytes for q in layout], [q.address for q in layout])
        elif self.allocator == "bytes":
            space = tokens(stays, size, problem.arena_bytes)
        else:
            space = addresses(stays, size, at)
        return tuple(order), pool, nodes_of(arrays, order, starts, stays, space)

    def _chosen_pool(self, value: Callable[[Any], int]) -> Pool:
        classes: list[int] = []
        counts: list[int] = []
        for (k, end), chosen in self.classes.items():
            if value(chosen):
                counts.append(value(self.counts[k, end]))
                classes += [len(counts)] * (end + 1 - k)
        return Pool(tuple(classes), tuple(counts))
