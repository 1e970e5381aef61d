"""The timeline of an exchange: every part with its share of each group of keys, and what fills it in the end.

Tall: while the slowest part is busy with a group, the others work on it as its chunks pass. Wide: each part goes on on
its own, and a team of all cores takes one key after the other, once it has arrived. Sums and values between racks
follow. Keys next to one another are one group if there are many, so that plans of large models have few tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from treadle.planner.passes.server.decisions import PartLoad, ServerDecisions
from treadle.planner.passes.server.prices import COMPUTATION, time_of
from treadle.planner.passes.server.times import on_network
from treadle.planner.timeline.simulator import Resource, Task

MOST_TASKS, MIB = 1000, 1 << 20
TEAM, ACROSS, FILL = "team of all cores", "between racks", "first and last chunk"


class KeyGroup(NamedTuple):
    """Keys `first` to `last` of the model; `until` are the bytes of all keys up to the last one."""

    first: int
    last: int
    name: str
    until: int


def exchange_of(decisions: ServerDecisions) -> tuple[tuple[Task, ...], tuple[Resource, ...]]:
    """Tasks and the parts that they hold; they end when the plan does."""
    across = _across_ns(decisions)
    inside = _inside_ns(decisions, across)
    parts = {each.part: min(each.time_ns, inside) for each in _kept(decisions)}
    groups = _groups(decisions, len(parts))
    tasks = [*_rows(decisions, parts, groups)]
    if decisions.two_level:
        tasks.append(Task("sums and values", across, (ACROSS,), tuple(range(len(tasks))), release=inside))
    if decisions.engine == "wide":
        tasks += _team(decisions, groups)
    tasks.append(Task("fill", decisions.fill_ns, (FILL,), tuple(range(len(tasks)))))
    used = {name for task in tasks for name in task.resources}
    return tuple(tasks), tuple(Resource(name) for name in (*parts, TEAM, ACROSS, FILL) if name in used)


def _kept(decisions: ServerDecisions) -> Iterator[PartLoad]:
    """The parts with a row: with two levels the link of a rack comes after all others."""
    for part in decisions.parts:
        if part.time_ns and part.part != COMPUTATION and not (decisions.two_level and part.part == "rack link"):
            yield part


def _across_ns(decisions: ServerDecisions) -> int:
    """What the second of two levels takes."""
    link = next((part for part in decisions.parts if part.part == "rack link"), None)
    if not decisions.two_level or link is None or link.load is None or link.rate is None:
        return 0
    return time_of(link.load, min(link.rate, sum(each.rate for each in decisions.problem.machine.interfaces)))


def _inside_ns(decisions: ServerDecisions, across: int) -> int:
    """What the slowest part takes for the first level, or the only one."""
    exchange = decisions.time_ns - decisions.fill_ns
    if decisions.two_level:
        return exchange - across
    return min(exchange, max((part.time_ns for part in _kept(decisions)), default=0))


def _groups(decisions: ServerDecisions, parts: int) -> list[KeyGroup]:
    keys = decisions.problem.keys
    each = -(-len(keys) * (parts + 1) // MOST_TASKS)
    found = []
    for last, until in enumerate(accumulate(key.bytes for key in keys)):
        first = last // each * each
        if last + 1 in (first + each, len(keys)):
            rest = f" and {last - first} more" if last > first else ""
            found.append(KeyGroup(first, last, f"{keys[first].name}{rest}", until))
    return found


def _rows(decisions: ServerDecisions, parts: dict[str, int], groups: Sequence[KeyGroup]) -> Iterator[Task]:
    """Each part's share of every group. In step: none begins before the slowest part has ended the group before, and
    none takes longer for it than that part."""
    in_step = decisions.engine == "tall"
    pace = max(parts, key=lambda name: parts[name], default="")
    shares = {name: _shares(time, groups) for name, time in parts.items()}
    rows = sorted(parts, key=lambda name: name != pace)
    for number, group in enumerate(groups):
        before = ((number - 1) * len(rows),) if in_step and number else ()
        for name in rows:
            most = shares[pace][number] if in_step else shares[name][number]
            yield Task(group.name, min(shares[name][number], most), (name,), before, priority=number)


def _shares(time: int, groups: Sequence[KeyGroup]) -> list[int]:
    """The part of `time` that falls to each group, by its bytes."""
    ends = [0, *(-(-time * group.until // groups[-1].until) for group in groups)]
    return [ends[number + 1] - ends[number] for number in range(len(groups))]


def _team(decisions: ServerDecisions, groups: Sequence[KeyGroup]) -> Iterator[Task]:
    """What a team of all cores does: keys in lock-step, each once it has arrived."""
    problem, work = decisions.problem, decisions.problem.machine.work
    network = max((part.time_ns for part in decisions.parts if on_network(part.part)), default=0)
    shared = problem.racks if decisions.two_level else 1
    each = problem.workers // shared * work.add_ns_per_MB + work.optimize_ns_per_MB
    cores, model, arrived, done = len(decisions.slots) // shared, problem.bytes, 0, 0
    for group in groups:
        begins = None
        for key in problem.keys[group.first : group.last + 1]:
            arrived += key.bytes
            start = max(done, -(-network * arrived // model))
            begins = start if begins is None else begins
            done = start - (-key.bytes * each // (MIB * cores))
        assert begins is not None
        yield Task(f"add and optimize {group.name}", done - begins, (TEAM,), release=begins)
