"""The one discrete-event simulator: tasks with integer durations on resources, and memory over time.

Rules, which make the schedule a function of its input:

* A task is ready when all tasks in `after` have ended and its release time has come. Time is an integer in any unit.
* An exclusive resource runs one task at a time. It serves its queue in the order of (ready time, priority, index) and
  lets nothing overtake: a task that needs several resources starts when it is first in all their queues and all of them
  are idle. A resource with a given `order` runs its tasks in exactly that order; one with `first="priority"` takes of
  all ready tasks the one of the lowest (priority, index), however long the others have waited.
* A shared resource is a fluid. A task asks for `demand` of its capacity to run at full speed; rates are max-min fair
  (progressive filling): all running tasks are slowed by the same factor until they fit, tasks held back elsewhere leave
  the rest to the others. A task ends at the first integer time at which its work is done, less than one unit late.
* At one time, ends come before starts, and frees before allocations.

Tasks of zero duration start and end at one time, one round after another: what ends, then what that makes ready, then
what starts, then again for what of that ended at once. A resource that becomes idle takes of what is ready in that
round; what waits for a task of zero length that starts in the same round comes too late, whatever its priority.
chrome_trace.py writes a schedule for Perfetto.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from treadle.planner.errors import InputError

FINEST = 2**32  # remaining work is rounded up to this fraction of a unit once its denominator outgrows it
FEW = 16  # tasks whose rates are remembered by their demands


@dataclass(frozen=True, slots=True)
class Task:
    """One operation, copy or transfer.

    resources: names of what it holds from start to end; a shared one is asked for its whole capacity.
    held: (exclusive one of them, time) that it gives back that long after its start, or at its end if that is sooner.
    shares: (shared resource, demand in units of its capacity). after: indices of tasks that end before this one starts.
    alloc: (memory, bytes) taken at the start. free: (memory, bytes) given back at the end. Lower priority goes first.
    """

    name: str
    duration: int
    resources: tuple[str, ...] = ()
    after: tuple[int, ...] = ()
    shares: tuple[tuple[str, int], ...] = ()
    alloc: tuple[tuple[str, int], ...] = ()
    free: tuple[tuple[str, int], ...] = ()
    priority: int = 0
    release: int = 0
    held: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Resource:
    """order: task indices in the order to run them, for an exclusive resource; None serves by `first`.

    "ready" serves first come first served, and a task that another resource holds up keeps those behind it waiting;
    "fits" lets them pass. A task's exclusive resources are all "fits" or none is.
    """

    name: str
    shared: bool = False
    capacity: int = 1
    order: tuple[int, ...] | None = None
    first: Literal["ready", "priority", "fits"] = "ready"


@dataclass(frozen=True, slots=True)
class Schedule:
    """When each task ran, and the bytes in each memory.

    memory: (time, level) from (0, initial level) on, one entry per change; a time comes twice where tasks of zero
    duration change the level twice, so that the peak is always the largest entry.
    """

    start: list[int]
    end: list[int]
    makespan: int
    memory: dict[str, list[tuple[int, int]]]
    peak: dict[str, int]


def simulate(
    tasks: Sequence[Task], resources: Sequence[Resource] = (), initial: Mapping[str, int] | None = None
) -> Schedule:
    """Runs all tasks; O(n log n) for exclusive resources, plus O(tasks sharing) per start or end on shared ones.

    initial: bytes in a memory before time 0. Raises InputError, naming the task, for a cycle (of dependences, or of
    dependences and given orders), an unknown or repeated resource, a negative duration or size, and a free of more than
    the memory holds.
    """
    return _Run(tasks, resources, initial or {}).run()


class _Run:
    def __init__(self, tasks: Sequence[Task], resources: Sequence[Resource], initial: Mapping[str, int]) -> None:
        self.tasks = tasks
        n = len(tasks)
        number = _numbered(resources)
        self.exclusive, self.shares = _needs(tasks, resources, number)
        self.capacity = [r.capacity for r in resources]
        self.early = [tuple((number[name], time) for name, time in task.held if time < task.duration) for task in tasks]
        self.waiting_for, self.dependents = _dependences(tasks, resources, self.exclusive)
        self.by_priority = [resource.first == "priority" for resource in resources]
        self.passing = [resource.first == "fits" for resource in resources]
        self.queues: list[list[tuple[int, int, int]]] = [[] for _ in resources]
        self.idle = [True] * len(resources)
        self.sharing: list[dict[int, None]] = [{} for _ in resources]  # running tasks of a shared resource
        self.remaining: dict[int, Fraction] = {}
        self.rate: dict[int, Fraction] = {}
        # the same few tasks' demands meet again and again
        self.known_rates: dict[tuple[tuple[tuple[int, int], ...], ...], tuple[Fraction, ...]] = {}
        self.updated: dict[int, int] = {}
        self.version = [0] * n
        self.start = [-1] * n
        self.end = [-1] * n
        self.level = dict(sorted(initial.items()))
        self.memory = {name: [(0, held)] for name, held in self.level.items()}
        # (time, task, version of a predicted end, -1 for a release, or -2 - r where the task gives back resource r)
        self.events: list[tuple[int, int, int]] = []

    def run(self) -> Schedule:
        events = self.events
        for i, task in enumerate(self.tasks):
            if not self.waiting_for[i]:
                events.append((max(0, task.release), i, -1))
        heapq.heapify(events)
        while events:
            now = events[0][0]
            ended: list[int] = []
            arrived: list[int] = []
            touched: list[int] = []
            while events and events[0][0] == now:
                _, i, version = heapq.heappop(events)
                if version < -1:
                    self.idle[-2 - version] = True
                    touched.append(-2 - version)
                elif version < 0:
                    arrived.append(i)
                elif version == self.version[i] and self.end[i] < 0:
                    self.end[i] = now
                    ended.append(i)
            self._step(now, ended, arrived, touched)
        self._all_ended()
        return Schedule(
            start=self.start,
            end=self.end,
            makespan=max(self.end, default=0),
            memory=self.memory,
            peak={name: max(held for _, held in curve) for name, curve in self.memory.items()},
        )

    def _step(self, now: int, ended: list[int], arrived: list[int], touched: list[int]) -> None:
        """Everything that happens at one time: ends, then arrivals, then starts, then new rates of shared resources.
        `touched` are resources that were given back."""
        changed: list[int] = []
        for i in ended:
            gone = {r for r, _ in self.early[i]}
            for r in (r for r in self.exclusive[i] if r not in gone) if gone else self.exclusive[i]:
                self.idle[r] = True
                touched.append(r)
            for r, _ in self.shares[i]:
                self.sharing[r].pop(i, None)
                changed.append(r)
            for j in self.dependents[i]:
                self.waiting_for[j] -= 1
                if not self.waiting_for[j]:
                    release = self.tasks[j].release
                    if release > now:
                        heapq.heappush(self.events, (release, j, -1))
                    else:
                        arrived.append(j)
        started = []
        for i in arrived:
            for r in self.exclusive[i]:
                since = 0 if self.by_priority[r] else now
                heapq.heappush(self.queues[r], (since, self.tasks[i].priority, i))
                touched.append(r)
            if not self.exclusive[i]:
                started.append(i)
        started += self._fitting([r for r in touched if self.passing[r]])
        for r in touched:
            if self.idle[r] and self.queues[r] and not self.passing[r]:
                i = self.queues[r][0][2]
                needs = self.exclusive[i]
                if all(self.idle[q] and self.queues[q][0][2] == i for q in needs):
                    for q in needs:
                        heapq.heappop(self.queues[q])
                        self.idle[q] = False
                    started.append(i)
        for i in started:
            self._begin(i, now, changed)
        self._account(now, ended, started)
        if changed:
            self._share(now, changed)

    def _fitting(self, touched: list[int]) -> list[int]:
        """The tasks waiting for these resources that find all of theirs idle, in the order of arrival."""
        started = []
        for entry in sorted({entry for r in touched if self.idle[r] for entry in self.queues[r]}):
            needs = self.exclusive[entry[2]]
            if all(self.idle[q] for q in needs):
                for q in needs:
                    self.queues[q].remove(entry)
                    self.idle[q] = False
                started.append(entry[2])
        return started

    def _begin(self, i: int, now: int, changed: list[int]) -> None:
        self.start[i] = now
        duration = self.tasks[i].duration
        for r, time in self.early[i]:
            heapq.heappush(self.events, (now + time, i, -2 - r))
        if duration and self.shares[i]:
            self.remaining[i], self.rate[i], self.updated[i] = Fraction(duration), Fraction(0), now
            for r, _ in self.shares[i]:
                self.sharing[r][i] = None
                changed.append(r)
        else:
            heapq.heappush(self.events, (now + duration, i, 0))

    def _account(self, now: int, ended: list[int], started: list[int]) -> None:
        """Frees, then allocations, each memory's new level written once."""
        seen: dict[str, int] = {}
        for i in ended:
            for name, size in self.tasks[i].free:
                seen[name] = self.level[name] = self.level.get(name, 0) - size
                if self.level[name] < 0:
                    raise InputError(
                        f"task {i} ({self.tasks[i].name}) frees {size} bytes of {name}, more than it holds"
                    )
        for i in started:
            for name, size in self.tasks[i].alloc:
                seen[name] = self.level[name] = self.level.get(name, 0) + size
        for name, level in sorted(seen.items()):
            curve = self.memory.setdefault(name, [(0, 0)])
            if curve[-1][1] != level:
                curve.append((now, level))

    def _share(self, now: int, changed: list[int]) -> None:
        """New rates and predicted ends for all tasks connected to a changed resource by shared resources."""
        component: dict[int, None] = {}
        seen = set(changed)
        frontier = list(changed)
        while frontier:
            for i in self.sharing[frontier.pop()]:
                if i not in component:
                    component[i] = None
                    for r, _ in self.shares[i]:
                        if r not in seen:
                            seen.add(r)
                            frontier.append(r)
        running = sorted(component)
        demands = tuple(self.shares[i] for i in running)
        rates = self.known_rates.get(demands)
        if rates is None:
            fair = self._fair_rates(running, sorted(seen))
            rates = tuple(fair[i] for i in running)
            if len(running) <= FEW:
                self.known_rates[demands] = rates
        for i, rate in zip(running, rates, strict=True):
            if rate == self.rate[i]:
                continue
            left = self.remaining[i] - self.rate[i] * (now - self.updated[i])
            if left.denominator > FINEST:
                left = Fraction(math.ceil(left * FINEST), FINEST)
            self.remaining[i], self.rate[i], self.updated[i] = left, rate, now
            self.version[i] += 1
            heapq.heappush(self.events, (now + max(0, math.ceil(left / rate)), i, self.version[i]))

    def _fair_rates(self, running: list[int], resources: list[int]) -> dict[int, Fraction]:
        """Progressive filling: the tightest resource fixes the rate of its tasks, the others share what is left."""
        rates: dict[int, Fraction] = {}
        left = {r: Fraction(self.capacity[r]) for r in resources}
        load = dict.fromkeys(resources, 0)
        for i in running:
            for r, demand in self.shares[i]:
                load[r] += demand
        open_tasks = dict.fromkeys(running)
        while open_tasks:
            common, tightest = min(((left[r] / load[r], r) for r in resources if load[r]), default=(Fraction(1), -1))
            fixed = list(open_tasks) if common >= 1 else [i for i in self.sharing[tightest] if i in open_tasks]
            rate = min(Fraction(1), common)
            for i in fixed:
                rates[i] = rate
                del open_tasks[i]
                for r, demand in self.shares[i]:
                    left[r] -= rate * demand
                    load[r] -= demand
        return rates

    def _all_ended(self) -> None:
        """Tasks that never became ready wait for each other; one cycle of them is named."""
        stuck = [i for i, end in enumerate(self.end) if end < 0]
        if not stuck:
            return
        blocked_by: dict[int, int] = {}
        for i in stuck:
            for j in self.dependents[i]:
                blocked_by.setdefault(j, i)
        i = stuck[0]
        path: dict[int, None] = {}
        while i not in path:
            path[i] = None
            i = blocked_by[i]
        walk = list(path)
        cycle = walk[walk.index(i) :][::-1]
        names = " -> ".join(f"{j} ({self.tasks[j].name})" for j in [*cycle[-1:], *cycle])
        raise InputError(f"task {cycle[-1]} ({self.tasks[cycle[-1]].name}) waits for itself: {names}")


def _numbered(resources: Sequence[Resource]) -> dict[str, int]:
    number: dict[str, int] = {}
    for at, resource in enumerate(resources):
        if resource.name in number:
            raise InputError(f"resource {resource.name} is given twice")
        if resource.capacity <= 0:
            raise InputError(f"resource {resource.name} has capacity {resource.capacity}, expected more than 0")
        number[resource.name] = at
    return number


def _needs(
    tasks: Sequence[Task], resources: Sequence[Resource], number: dict[str, int]
) -> tuple[list[tuple[int, ...]], list[tuple[tuple[int, int], ...]]]:
    """Per task its exclusive resources, and its shared ones with the demand."""
    exclusive: list[tuple[int, ...]] = []
    shares: list[tuple[tuple[int, int], ...]] = []
    for i, task in enumerate(tasks):
        if task.duration < 0:
            raise InputError(f"task {i} ({task.name}) has duration {task.duration}, expected 0 or more")
        alone: list[int] = []
        shared: list[tuple[int, int]] = []
        for name in task.resources:
            r = number.get(name, -1)
            if r < 0:
                raise InputError(f"task {i} ({task.name}) uses the unknown resource {name}")
            if resources[r].shared:
                shared.append((r, resources[r].capacity))
            else:
                alone.append(r)
        for name, demand in task.shares:
            r = number.get(name, -1)
            if r < 0 or not resources[r].shared:
                raise InputError(f"task {i} ({task.name}) shares {name}, which is not a shared resource")
            if demand <= 0:
                raise InputError(f"task {i} ({task.name}) demands {demand} of {name}, expected more than 0")
            shared.append((r, demand))
        if len({resources[r].first == "fits" for r in alone}) > 1:
            raise InputError(f"task {i} ({task.name}) names resources of which only some let others pass")
        held = [*alone, *(r for r, _ in shared)]
        if len(held) > 1 and len(set(held)) < len(held):
            raise InputError(f"task {i} ({task.name}) names a resource twice")
        for name, size in (*task.alloc, *task.free):
            if size < 0:
                raise InputError(f"task {i} ({task.name}) has {size} bytes of {name}, expected 0 or more")
        exclusive.append(tuple(alone))
        shares.append(tuple(shared))
    return exclusive, shares


def _dependences(
    tasks: Sequence[Task], resources: Sequence[Resource], exclusive: list[tuple[int, ...]]
) -> tuple[list[int], list[list[int]]]:
    """Per task the number of tasks it waits for and the tasks that wait for it; a given order is a chain of these."""
    n = len(tasks)
    waiting_for = [0] * n
    dependents: list[list[int]] = [[] for _ in range(n)]
    for i, task in enumerate(tasks):
        for j in task.after:
            if not 0 <= j < n:
                raise InputError(f"task {i} ({task.name}) comes after task {j}, expected 0..{n - 1}")
            dependents[j].append(i)
        waiting_for[i] = len(task.after)
    for r, resource in enumerate(resources):
        if resource.order is None:
            continue
        users = [i for i in range(n) if r in exclusive[i]]
        if resource.shared or sorted(resource.order) != users:
            expected = "none, it is shared" if resource.shared else f"each of its {len(users)} tasks once"
            odd = sorted(set(resource.order).symmetric_difference(users))
            culprit = f"; look at task {odd[0]}" if odd else ""
            raise InputError(
                f"resource {resource.name} has an order of {len(resource.order)}, expected {expected}{culprit}"
            )
        for before, i in zip(resource.order, resource.order[1:], strict=False):
            dependents[before].append(i)
            waiting_for[i] += 1
    return waiting_for, dependents
