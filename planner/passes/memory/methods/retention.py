"""Retention intervals: each run of a forward node and how long its result is kept, in CP-SAT.

As in "Moccasin: Efficient Tensor Rematerialization for Neural Networks", the steps of an iteration have a fixed order,
and a plan is a few intervals of that order for each node instead of a 0-1 variable for each node at each step. Stage t
= 0 is the forward pass, stage t >= 1 ends with backward node t - 1. Stage t has N + 1 places: place t (N + 1) + i is
where forward node i may run in it, place t (N + 1) + N is its backward node.

Variables, for each forward node i and its runs c = 0..C_i (run 0 is that of the forward pass):
    a_ic        the run happens (run 0 of an op always does)
    t_ic        its stage, t_i0 = 0, t_ic in 1..(last stage that i can be good for); p_ic = t_ic (N + 1) + i its place
    e_ic        its result is kept through places p_ic .. e_ic - 1
    m_icl       it uses implementation l
    q_ic        it overwrites x_inplace(i)
    d_tl        backward node t runs with implementation l
    w           which run of j a reader reads, one variable for each run of j

Objective:  min sum tau_il m_icl - sum saved_i q_ic + sum tauhat_tl d_tl

Rows:
    runs of one node     a_i,c+1 <= a_ic,  t_i,c+1 > t_ic,  e_ic <= p_i,c+1                    (`_Model.runs_of`)
    choices              sum_l m_icl = a_ic,  sum_l d_tl = 1
    forward node reads   a_ic = sum_c' w_c';  w_c' => a_jc', t_jc' <= t_ic, e_jc' >= p_ic + 1 - q_ic
                         w_c', q_ic => e_jc' <= p_ic                                           (`_Model.reads_forward`)
    creators             w_c' => t_jc' = t_ic                       for j the creator of i
    backward node reads  sum_c' w_c' >= d_tl for i in D_tl;  w_c' => a_ic', t_ic' <= t, e_ic' > t (N + 1) + N
                                                                                               (`_Model.reads_backward`)
    memory               at every place: B + Lhat_t + sum b_i of the results kept there + workspace of what runs
                         there (+ y_t of a backward node that is not in place) <= M            (`_Model.memory`)

The last is one cumulative constraint and exact: nothing in it bounds L_i or rounds a size. With C_i as large as the
number of stages in which i may run the model has every plan, and its bound holds for all of them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from treadle.planner.passes.memory.formulation.useful import (
    backward_costs,
    forward_costs,
    transient_bytes,
    undominated,
    unrepeatable,
    useful_sets,
)
from treadle.planner.passes.memory.lower import RecomputeSchedule
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.program import RunForward
from treadle.planner.solver.cp_sat import configured, search
from treadle.planner.solver.interface import Options, Progress, Reporter

AGAIN = 2
"""Recomputations of a node in a problem that is too large to allow them in every stage."""
COMPLETE = 150
"""Forward nodes times backward nodes up to which recomputation is allowed in every stage."""
WORK = 60.0
"""Deterministic seconds of CP-SAT for one unit of effort."""


@dataclass(frozen=True)
class Retention:
    """`bound_ns` is None where the model leaves plans out; `finished`: nothing in the model is better."""

    schedule: RecomputeSchedule | None
    bound_ns: int | None
    finished: bool
    infeasible: bool
    limit_fired: bool


@dataclass(frozen=True)
class RunVariables:
    """One run of a forward node; variables or constants of the CP-SAT model."""

    present: Any
    stage: Any
    place: Any
    end: Any
    choices: dict[int, Any]
    inplace: Any | None


def solve_retention(
    problem: MemoryProblem,
    start: RecomputeSchedule | None = None,
    effort: int = 1,
    *,
    gap: float = 0.0,
    seed: int = 0,
    workers: int = 1,
    time_limit_s: float | None = None,
    stop: threading.Event | None = None,
    on_better: Callable[[RecomputeSchedule], None] = lambda schedule: None,
    on_bound: Callable[[int], None] = lambda bound_ns: None,
) -> Retention:
    """The fastest plan of the model within `effort`, a fixed amount of work; `start` is a plan to begin with.

    time_limit_s: a safety net in wall clock; `limit_fired` states that it ended the search. Schedules are not pruned.
    """
    from ortools.sat.python import cp_model

    model = _Model.of(problem, start)

    def on_progress(progress: Progress) -> None:
        if model.complete and progress.bound is not None:
            on_bound(math.ceil(progress.bound - 1e-6))

    options = Options(gap, WORK * effort, None, time_limit_s, seed, workers, Reporter(on_progress, 0))
    solver = configured(options)
    status = search(
        solver,
        model.cp,
        options,
        stop or threading.Event(),
        lambda values: on_better(model.schedule(values)),
    )
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    finished = status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    return Retention(
        schedule=model.schedule(solver.response_proto.solution) if found else None,
        bound_ns=math.ceil(solver.best_objective_bound - 1e-6) if found and model.complete else None,
        finished=finished,
        infeasible=model.complete and status == cp_model.INFEASIBLE,
        limit_fired=not finished and solver.deterministic_time < 0.99 * WORK * effort,
    )


@dataclass
class _Model:
    """The CP-SAT model under construction, and the tables that read its solution."""

    problem: MemoryProblem
    again: list[int]
    cp: Any
    latest: list[int]
    """The last stage in which a recomputation of each node is worth having, 0 for none."""
    runs: list[list[RunVariables]] = field(default_factory=list)
    backward: list[dict[int, Any]] = field(default_factory=list)
    intervals: list[Any] = field(default_factory=list)
    demands: list[int] = field(default_factory=list)
    cost: list[Any] = field(default_factory=list)
    chosen: dict[tuple[int, ...], Any] = field(default_factory=dict)
    """Which run is read: by (i, c, j, c'), or by (t, i, c') for backward nodes."""
    hints: dict[int, int] = field(default_factory=dict)

    @staticmethod
    def of(problem: MemoryProblem, start: RecomputeSchedule | None) -> _Model:
        from ortools.sat.python import cp_model

        n = len(problem.fwd)
        latest = [0] * n
        for k, nodes in enumerate(useful_sets(problem)):
            for i in nodes:
                latest[i] = latest[i] or len(problem.bwd) + 1 - k
        for i in unrepeatable(problem):
            latest[i] = 0
        most = len(problem.bwd) if n * len(problem.bwd) <= COMPLETE else AGAIN
        again = [min(last, most) for last in latest]
        model = _Model(problem, again, cp_model.CpModel(), latest)
        for i in range(n):
            model.runs_of(i)
        for i in range(n):
            for c in range(len(model.runs[i])):
                model.reads_forward(i, c)
        for t in range(1, len(problem.bwd) + 1):
            model.reads_backward(t)
        model.memory()
        model.cp.minimize(sum(model.cost))
        if start is not None:
            model.hint(start)
        return model

    @property
    def complete(self) -> bool:
        """Every plan is one of the model's."""
        return self.again == self.latest

    @property
    def width(self) -> int:
        """Places of a stage."""
        return len(self.problem.fwd) + 1

    def runs_of(self, i: int) -> None:
        node, cp = self.problem.fwd[i], self.cp
        horizon = self.width * (len(self.problem.bwd) + 1)
        runs: list[RunVariables] = []
        for c in range(self.again[i] + 1):
            first = c == 0
            present = cp.new_constant(1) if first and node.kind == "op" else cp.new_bool_var("")
            stage = cp.new_constant(0) if first else cp.new_int_var(1, self.latest[i], "")
            place = i if first else self.width * stage + i
            end = cp.new_int_var(i + 1 if first else self.width + i + 1, horizon, "")
            choices = self.choices_of(i, c > 0, present)
            inplace = None
            if node.inplace_of is not None:
                inplace = cp.new_bool_var("")
                cp.add_implication(inplace, present)
                if node.inplace_saves_ns:
                    self.cost.append(-node.inplace_saves_ns * inplace)
            run = RunVariables(present, stage, place, end, choices, inplace)
            self.cost += [node.impls[way].time(c > 0) * var for way, var in choices.items()]
            if not first:
                before = runs[-1]
                cp.add(end >= place + 1)
                cp.add(before.end <= place).only_enforce_if(present, before.present)
                if c > 1:
                    cp.add_implication(present, before.present)
                    cp.add(stage >= before.stage + 1).only_enforce_if(present)
            runs.append(run)
        self.runs.append(runs)

    def choices_of(self, i: int, again: bool, present: Any) -> dict[int, Any]:
        return self.choice(undominated(*forward_costs(self.problem.fwd[i], again)), present)

    def choice(self, candidates: list[int], present: Any) -> dict[int, Any]:
        if len(candidates) == 1:
            return {candidates[0]: present}
        choices = {way: self.cp.new_bool_var("") for way in candidates}
        self.cp.add(sum(choices.values()) == present)
        return choices

    def reads_forward(self, i: int, c: int) -> None:
        node, cp, run = self.problem.fwd[i], self.cp, self.runs[i][c]
        for j in sorted(set(node.inputs)):
            overwrites = run.inplace if j == node.inplace_of else None
            sources = list(enumerate(self.runs[j][: 1 if c == 0 else None]))
            literals = []
            for other, source in sources:
                used = run.present if len(sources) == 1 else cp.new_bool_var("")
                self.chosen[i, c, j, other] = used
                literals.append(used)
                cp.add_implication(used, source.present)
                cp.add(source.end >= run.place + 1 - (0 if overwrites is None else overwrites)).only_enforce_if(used)
                if overwrites is not None:
                    cp.add(source.end <= run.place).only_enforce_if(used, overwrites)
                if c and other:
                    equal = j == node.creator
                    cp.add(source.stage == run.stage if equal else source.stage <= run.stage).only_enforce_if(used)
                elif c and j == node.creator:
                    cp.add(used == 0)
            if len(literals) > 1:
                cp.add(sum(literals) == run.present)

    def reads_backward(self, t: int) -> None:
        cp, back = self.cp, self.problem.bwd[t - 1]
        choices = self.choice(undominated(*backward_costs(back)), cp.new_constant(1))
        self.backward.append(choices)
        self.cost += [back.impls[way].time_ns * var for way, var in choices.items()]
        place = self.width * t + self.width - 1
        for i in sorted({i for way in choices for i in back.impls[way].needs}):
            literals = []
            for c, run in enumerate(self.runs[i]):
                used = self.chosen[t, i, c] = cp.new_bool_var("")
                literals.append(used)
                cp.add_implication(used, run.present)
                cp.add(run.end >= place + 1).only_enforce_if(used)
                if c:
                    cp.add(run.stage <= t).only_enforce_if(used)
            for way, var in choices.items():
                if i in back.impls[way].needs:
                    cp.add_bool_or([*literals, ~var])

    def memory(self) -> None:
        cp = self.cp
        for i, node in enumerate(self.problem.fwd):
            for c, run in enumerate(self.runs[i]):
                if node.out_bytes:
                    size = (
                        run.end - i if c == 0 else cp.new_int_var(1, self.width * len(self.backward) + self.width, "")
                    )
                    stays = cp.new_optional_interval_var(run.place, size, run.end, run.present, "")
                    self.use(stays, node.out_bytes)
                for way, var in run.choices.items():
                    workspace = node.impls[way].workspace(c > 0)
                    if workspace:
                        self.use(cp.new_optional_fixed_size_interval_var(run.place, 1, var, ""), workspace)
        for t, (back, choices) in enumerate(zip(self.problem.bwd, self.backward, strict=True), start=1):
            if back.live_grad_bytes:
                self.use(cp.new_fixed_size_interval_var(self.width * t, self.width, ""), back.live_grad_bytes)
            for way, var in choices.items():
                if transient_bytes(back, way):
                    last = cp.new_optional_fixed_size_interval_var(self.width * (t + 1) - 1, 1, var, "")
                    self.use(last, transient_bytes(back, way))
        cp.add_cumulative(self.intervals, self.demands, self.problem.budget_bytes - self.problem.base_bytes)

    def use(self, interval: Any, count: int) -> None:
        self.intervals.append(interval)
        self.demands.append(count)

    def schedule(self, values: Sequence[int]) -> RecomputeSchedule:
        """The decisions that a solution stands for. values: of all variables, by index."""
        problem, stages = self.problem, len(self.problem.bwd) + 1
        runs: list[list[RunForward]] = [[] for _ in range(stages)]
        kept: list[set[int]] = [set() for _ in range(stages)]

        def on(var: Any) -> bool:
            return var is not None and bool(values[var.index])

        def chosen(choices: dict[int, Any]) -> int:
            return next(way for way, var in choices.items() if on(var))

        for i in range(len(problem.fwd)):
            for run in self.runs[i]:
                if on(run.present):
                    stage, end = values[run.stage.index], values[run.end.index]
                    runs[stage].append(RunForward(i, chosen(run.choices), on(run.inplace)))
                    for t in range(stage, stages):
                        if end > self.width * (t + 1):
                            kept[t].add(i)
        return RecomputeSchedule(
            tuple(map(tuple, runs)), tuple(map(frozenset, kept)), tuple(map(chosen, self.backward))
        )

    def hint(self, start: RecomputeSchedule) -> None:
        """Start from a pruned plan, unless it runs a node more often than the model allows."""
        stays = retained(self.problem, start)
        if any(len(found) > len(self.runs[i]) - (found[0].stage > 0) for i, found in enumerate(stays) if found):
            return
        values: dict[int, tuple[Any, int]] = {}

        def set_to(var: Any, value: int) -> None:
            values[var.index] = (var, value)

        for i, found in enumerate(stays):
            runs = self.runs[i]
            given = dict(enumerate(found, start=1 if found and found[0].stage else 0))
            for c, run in enumerate(runs):
                stay = given.get(c)
                set_to(run.present, stay is not None)
                if stay is not None:
                    set_to(run.stage, stay.stage)
                    set_to(run.end, stay.end)
                if run.inplace is not None:
                    set_to(run.inplace, stay is not None and stay.run.inplace)
                if stay is None or stay.run.impl in run.choices:
                    for way, var in run.choices.items():
                        set_to(var, stay is not None and stay.run.impl == way)
        for choices, way in zip(self.backward, start.backward, strict=True):
            if way in choices:
                for other, var in choices.items():
                    set_to(var, other == way)
        for var, value in values.values():
            self.cp.add_hint(var, int(value))


@dataclass(frozen=True)
class Retained:
    """One run of a plan, its stage, and the place after the last that reads its result."""

    run: RunForward
    stage: int
    end: int


def retained(problem: MemoryProblem, schedule: RecomputeSchedule) -> list[list[Retained]]:
    """The runs of each forward node in a pruned schedule, in order, with how long their results are read."""
    width = len(problem.fwd) + 1
    found: list[list[Retained]] = [[] for _ in problem.fwd]

    def read(i: int, until: int) -> None:
        last = found[i][-1]
        found[i][-1] = Retained(last.run, last.stage, max(last.end, until))

    for stage, runs in enumerate(schedule.runs):
        for run in runs:
            node, place = problem.fwd[run.node], width * stage + run.node
            for j in node.inputs:
                read(j, place if run.inplace and j == node.inplace_of else place + 1)
            found[run.node].append(Retained(run, stage, place + 1))
        for i in schedule.needs(problem, stage):
            read(i, width * stage + width)
    return found
