"""The search for the fastest plan within a budget: rounds of methods, each started from the best plan so far.

`auto` takes milliseconds to minutes. In each round one attempt looks for plans while another proves a bound:

    1  heuristics, after checkpoints; where they find nothing, the plan of least peak
    2                a quick lower bound
    3  segments      with  a better lower bound
    4  windows       with  a better lower bound
    5  more windows  with  the best lower bound
    6  the 0-1 program of at most FULL node pairs, which does both

For at most SMALL node pairs the 0-1 program follows the heuristics directly.

Equal inputs give equal plans unless a limit fired: the next round follows from node counts, and from plans and bounds
at the end of the round before. A round also ends with the first plan within the gap of the bound that was known when it
started, and with a proof that nothing better exists. The wall-clock limit, half of what is left of it, Ctrl-C and
SIGTERM end a round early, which the plan records. The limit covers all of planning: the time that checking and writing
a plan took once is reserved for the last plan.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from treadle.planner.documents.scalars import format_bytes
from treadle.planner.errors import InfeasibleError, InputError, LimitError
from treadle.planner.passes.memory.bound import least_bytes, once
from treadle.planner.passes.memory.lower import RecomputeSchedule, prune
from treadle.planner.passes.memory.methods.checkpoints import solve_checkpoints
from treadle.planner.passes.memory.methods.least_peak import least_peak_schedule
from treadle.planner.passes.memory.minimum import Minimum, least_budget
from treadle.planner.passes.memory.plain import plain_peak, whole_peak
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.search.attempts import Answer, Attempt, MemoryOptions, attempt
from treadle.planner.passes.memory.search.race import race
from treadle.planner.passes.memory.simulate import simulated
from treadle.planner.search.bound import Bound
from treadle.planner.search.clock import Clock
from treadle.planner.solver import Progress, relative_gap

log = logging.getLogger("treadle")

SMALL = 1_000
"""Forward nodes times backward nodes up to which the 0-1 program takes a second or two."""
FULL = 40_000
"""The same up to which it is tried: above, its root relaxation takes longer than all else together."""
HERE = 10_000
"""The same up to which heuristics run in this process, since they take a fraction of a second."""

CHECK, AGAIN = 6, 1.5
"""Factors: checking and writing a plan takes at most CHECK times its simulation, and AGAIN times what another took."""

HEURISTIC = (Attempt("heuristic"),)
AUTO = (
    (("segments", 1), ("bound", 2)),
    (("windows", 1), ("bound", 3)),
    (("windows", 2), ("bound", 4)),
)

OnProgress = Callable[[Progress], None] | None


class Interrupted(LimitError):
    """Ctrl-C or SIGTERM came before there was a plan."""


class BudgetTooSmall(InfeasibleError):
    """No plan fits; `minimum` states what is known of the least feasible budget."""

    def __init__(self, problem: MemoryProblem, minimum: Minimum) -> None:
        super().__init__(_why_infeasible(problem, minimum))
        self.minimum = minimum


@dataclass(frozen=True)
class BoundedSchedule:
    """The best schedule, pruned, and the `bound` of better ones.

    `method` found it; `parts` are all attempts of the search, in order.
    """

    schedule: RecomputeSchedule
    time_ns: int
    method: str
    bound: Bound
    parts: tuple[str, ...] = ()
    solver_status: str | None = None
    limit_fired: bool = False
    interrupted: bool = False


def search(
    problem: MemoryProblem,
    options: MemoryOptions,
    on_progress: OnProgress = None,
    on_better: Callable[[BoundedSchedule], None] = lambda found: None,
    start: RecomputeSchedule | None = None,
    clock: Clock | None = None,
) -> BoundedSchedule:
    """The fastest schedule found whose exact peak is within the budget. `start` is a plan to begin with, `clock` that
    of the command; without one the time limit begins now.

    `on_better` is called in this process with each plan that beats all before it. Raises InfeasibleError naming the
    least feasible budget where there is provably none, LimitError when the limits ended the search before there was
    one, Interrupted when Ctrl-C or SIGTERM did.
    """
    if options.dependency_set == "leaving" and options.method not in ("auto", "full"):
        raise InputError(
            f"found method {options.method}, expected full or auto: only the 0-1 program knows the leaving mode",
            where="--method",
        )
    if problem.budget_bytes < least_bytes(problem):
        raise BudgetTooSmall(problem, _least_feasible(problem, options))
    clock = clock or Clock.of(options.time_limit_s)
    state = _Search(problem, options, on_progress, on_better, clock)
    if start is not None:
        state.offer("start", start)
    pairs = len(problem.fwd) * len(problem.bwd)
    turns = rounds(pairs, options)
    stop = clock.stop
    with clock.listening():
        for jobs in turns:
            if state.over or state.near() or stop.is_set():
                break
            if jobs == HEURISTIC:
                state.offer("heuristic", solve_checkpoints(problem))
            if state.overdue():
                break
            state.run(jobs, stop, isolated=pairs > (HERE if jobs == HEURISTIC else SMALL), last=jobs == turns[-1])
            if state.best is None and jobs == HEURISTIC and options.method == "auto" and SMALL < pairs <= FULL:
                state.squeeze()
        if state.best is None and state.least is None and not stop.is_set():
            state.squeeze()
    best, least = state.best, state.least
    if best is None and stop.is_set():
        raise Interrupted(f"interrupted before a plan within {format_bytes(problem.budget_bytes)} was found")
    if best is None:
        assert least is not None
        if state.infeasible:
            least = replace(least, proved_bytes=max(least.proved_bytes, problem.budget_bytes + 1))
        if least.proved_bytes > problem.budget_bytes:
            raise BudgetTooSmall(problem, least)
        raise LimitError(_nothing_found(problem, state, least))
    return state.found(best, interrupted=stop.is_set())


def rounds(pairs: int, options: MemoryOptions) -> tuple[tuple[Attempt, ...], ...]:
    """The attempts of each round. One looks for plans and one proves, so that the order of plans does not depend on the
    machine."""
    first = (HEURISTIC, (Attempt("bound"),))
    if options.dependency_set == "leaving":
        return ((Attempt("full"),),)
    match options.method:
        case "auto" if pairs <= SMALL:
            return (HEURISTIC, (Attempt("full"),))
        case "auto":
            better = tuple((Attempt(*plans), Attempt(*bound)) for plans, bound in AUTO)
            return (*first, *better, (Attempt("full"),)) if pairs <= FULL else (*first, *better)
        case "heuristic":
            return first
        case "full" | "retention" as exact:
            return (HEURISTIC, (Attempt(exact),))
        case "windows":
            return (*first, (Attempt("windows"), Attempt("bound", 2)), (Attempt("windows", 2), Attempt("bound", 3)))
        case other:
            return (*first, (Attempt(other), Attempt("bound", 2)))


@dataclass
class _Search:
    """The best plan and the best bound so far."""

    problem: MemoryProblem
    options: MemoryOptions
    on_progress: OnProgress
    on_better: Callable[[BoundedSchedule], None]
    clock: Clock = field(default_factory=Clock)
    best: BoundedSchedule | None = None
    bound: Bound = field(init=False)
    running_bound_ns: int = 0
    """Bound of a running attempt; it counts in the end even if that attempt is killed."""
    parts: tuple[str, ...] = ()
    solver_status: str | None = None
    infeasible: bool = False
    limit_fired: bool = False
    failure: str = ""
    over: bool = False
    running: str = ""
    """The attempts of the current round, to be shown."""
    least: Minimum | None = None
    """What is known of the least budget."""
    waiting: list[tuple[Attempt, Answer]] = field(default_factory=list)
    """Answers of the current round, which count when it ends."""
    finish_s: float = 0.0
    """Seconds to check and to write a plan, as measured so far."""

    def __post_init__(self) -> None:
        self.bound = once(self.problem)

    @property
    def deadline(self) -> float:
        """When the search has to end, so that its plan is written within the limit."""
        return self.clock.ends - min(self.clock.whole_s / 2, self.finish_s)

    def overdue(self) -> bool:
        late = self.clock.now() > self.deadline
        self.limit_fired |= late
        return late

    def offer(self, method: str, schedule: RecomputeSchedule) -> None:
        """Take a plan that fits and beats all before it."""
        began = self.clock.now()
        pruned = prune(self.problem, schedule)
        result = simulated(self.problem, pruned)
        if result.peak_bytes > self.problem.budget_bytes or (self.best and result.time_ns >= self.best.time_ns):
            return
        self.best = BoundedSchedule(pruned, result.time_ns, method, self.bound.of_plan(result.time_ns))
        seen = self.clock.now()
        if seen + self.finish_s < self.deadline:
            self.on_better(self.found(self.best, interrupted=True))
        self.finish_s = max(self.finish_s, CHECK * (seen - began), AGAIN * (self.clock.now() - seen))
        self.report()

    def on_answer(self, job: Attempt, answer: Answer) -> None:
        """Take the answer of an attempt that ended."""
        if answer.schedule is not None:
            self.offer(job.method, answer.schedule)
        self.waiting.append((job, answer))
        if answer.bound is not None:
            self.on_bound(answer.bound)

    def count(self) -> None:
        """Count what the attempts of a round have proved."""
        for _, answer in self.waiting:
            self.infeasible |= answer.infeasible
            self.limit_fired |= answer.limit_fired
            self.failure = self.failure or answer.failure
            self.solver_status = answer.status or self.solver_status
            proved = self.proved(answer)
            if answer.bound is not None and proved > self.bound.time_ns:
                self.bound = replace(answer.bound, time_ns=proved)
            self.over |= answer.infeasible and self.best is None
        self.waiting.clear()

    def proved(self, answer: Answer) -> int:
        """The bound of an answer, 0 where it does not bound the best plan."""
        time_ns = None if self.best is None else self.best.time_ns
        bound = 0 if answer.bound is None else answer.bound.time_ns
        if time_ns is None:
            return bound
        if answer.status == "optimal" and abs(bound - time_ns) <= 1e-6 * time_ns:
            return time_ns
        # A plan below the bound: rows and objective of a solver hold to its tolerances only.
        return bound if bound <= time_ns else 0

    def near(self) -> bool:
        """Whether the best plan is within the gap of the bound."""
        gap = None if self.best is None else relative_gap(self.best.time_ns, self.bound.time_ns)
        return gap is not None and gap <= self.options.gap

    def ended(self) -> bool:
        """Whether the round can end."""
        if self.near():
            self.waiting.clear()
            return True
        return self.best is not None and any(self.proved(answer) == self.best.time_ns for _, answer in self.waiting)

    def squeeze(self) -> None:
        """Look for the plan of least peak, which is taken if it fits, and for a proof that none fits."""
        self.running = "least budget"
        self.parts += ("least-budget",)
        self.report()
        left = self.left()
        # Once the search was cut off, only a proof that there is no plan is worth more time.
        in_time = self.options.method == "auto" and (left is None or left > 0)
        if in_time or self.infeasible or self.options.dependency_set == "leaving":
            self.least = _least_feasible(self.problem, replace(self.options, time_limit_s=left and max(1.0, left / 2)))
        else:
            self.least = _lean(self.problem)
        if self.least.schedule is not None:
            self.offer("least-budget", self.least.schedule)
        self.over |= self.best is None and self.least.proved_bytes > self.problem.budget_bytes

    def left(self) -> float | None:
        """Seconds to the time limit."""
        return None if math.isinf(self.clock.ends) else self.deadline - self.clock.now()

    def run(self, jobs: tuple[Attempt, ...], stop: threading.Event, isolated: bool, last: bool = True) -> None:
        """One round. All but the last get half of the time that is left, so that later ones can start."""
        left = self.left()
        if left is not None:
            left = max(0.1, left if last else left / 2)
        options = replace(self.options, time_limit_s=left)
        start = None if self.best is None else self.best.schedule
        self.parts += tuple(map(str, jobs))
        self.running = " and ".join(map(str, jobs))
        log.info("method %s begins", self.running)
        if isolated:
            self.limit_fired |= race(
                jobs,
                self.problem,
                start,
                options,
                stop=stop,
                deadline=math.inf if left is None else time.monotonic() + left,
                on_better=lambda place, schedule: self.offer(jobs[place].method, schedule),
                on_bound=self.on_bound,
                on_answer=lambda place, answer: self.on_answer(jobs[place], answer),
                over=self.ended,
                tick=self.report,
            )
        else:
            for job in jobs:
                self.on_answer(
                    job, attempt(job, self.problem, start, options, partial(self.offer, job.method), self.on_bound)
                )
        self.count()
        self.report()

    def on_bound(self, bound: Bound) -> None:
        self.running_bound_ns = max(self.running_bound_ns, bound.time_ns)
        self.report()

    def report(self) -> None:
        if self.on_progress is not None:
            incumbent = None if self.best is None else float(self.best.time_ns)
            bound = float(max(self.bound.time_ns, self.running_bound_ns))
            if incumbent is not None:
                bound = min(bound, incumbent)
            elapsed = self.clock.elapsed_s
            self.on_progress(Progress(incumbent, bound, relative_gap(incumbent, bound), elapsed, self.running))

    def found(self, best: BoundedSchedule, interrupted: bool) -> BoundedSchedule:
        return replace(
            best,
            bound=self.bound.of_plan(best.time_ns),
            parts=self.parts,
            solver_status=self.solver_status,
            limit_fired=self.limit_fired,
            interrupted=interrupted,
        )


def _nothing_found(problem: MemoryProblem, state: _Search, least: Minimum) -> str:
    text = f"no plan within {format_bytes(problem.budget_bytes)} ({problem.budget_bytes} bytes) was found"
    if state.failure:
        return f"{text}: {state.failure}"
    text += f" in {state.clock.elapsed_s:.3g} s"
    if least.budget_bytes is not None and least.budget_bytes > problem.budget_bytes:
        text += f"; {format_bytes(least.budget_bytes)} ({least.budget_bytes} bytes) would be enough"
    if state.limit_fired or state.overdue():
        return f"{text}; raise --time-limit or --budget"
    other = " or take --method auto" if state.options.method != "auto" else ""
    return f"{text}; {state.options.method} has nothing more to try: raise --budget{other}"


def _least_feasible(problem: MemoryProblem, options: MemoryOptions) -> Minimum:
    """What is known of the least budget; the 0-1 program is solved for it where that is small enough."""
    if len(problem.fwd) * len(problem.bwd) <= FULL:
        return least_budget(
            problem,
            dependency_set=options.dependency_set,
            backend=options.solver,
            time_limit_s=options.time_limit_s,
        )
    return _lean(problem)


def _lean(problem: MemoryProblem) -> Minimum:
    lean = least_peak_schedule(problem)
    return Minimum(simulated(problem, lean).peak_bytes, least_bytes(problem), lean)


def _why_infeasible(problem: MemoryProblem, minimum: Minimum) -> str:
    plain = plain_peak(problem)
    whole = whole_peak(problem)

    def said(count: int) -> str:
        of = "store-all" if plain is None else "plain PyTorch"
        return f"{format_bytes(count)} ({count} bytes, {count / max(1, whole):.3g}x of {of})"

    asked = f"budget {said(problem.budget_bytes)}"

    if minimum.budget_bytes is None:
        return f"{asked} is infeasible: no plan is below {said(minimum.proved_bytes)}"
    if minimum.budget_bytes == minimum.proved_bytes:
        return f"{asked} is below the least feasible {said(minimum.budget_bytes)}"
    return (
        f"{asked} is infeasible: no plan is below {said(minimum.proved_bytes)}, the smallest one found needs "
        f"{said(minimum.budget_bytes)}"
    )
