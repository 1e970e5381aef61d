"""A schedule in the Chrome trace event format (JSON object form), which Perfetto and chrome://tracing open.

Every event has `ph`, `pid`, `tid` and, but for metadata, `ts` in microseconds. What Perfetto needs of them:

* X, a slice: `name` and `dur`. Slices of one track (pid, tid) must not partly overlap, so tasks that run together on a
  shared resource get tracks of their own.
* M, metadata: `process_name` and `thread_name` with `args.name`, without which tracks show bare numbers; the
  `thread_sort_index` only sorts them.
* C, a counter: a number in `args`, drawn as a curve that keeps its value until the next event.
* s and f, an arrow: equal `id`, `cat` and `name`; each end belongs to the slice of its track at its time (f with bp e).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

from treadle.planner.timeline.simulator import Resource, Schedule, Task

PID = 1  # tracks are numbered from the next on: a thread with its process's number is shown as the main thread


def chrome_trace(
    tasks: Sequence[Task],
    resources: Sequence[Resource],
    schedule: Schedule,
    *,
    ticks_per_us: int = 1000,
    title: str = "treadle",
    flows: bool = False,
    pid: int = PID,
) -> dict[str, Any]:
    """The trace as a JSON-ready dict. A task appears on the track of each resource it uses.

    ticks_per_us: time units of the schedule in a microsecond (1000 for nanoseconds). flows: an arrow per dependence.
    pid: the number of the process, which differs where a file has several.
    """
    tracks = _tracks(tasks, resources, schedule)
    events: list[dict[str, Any]] = [_meta("process_name", pid, 0, name=title)]
    spans: list[dict[str, Any]] = []
    home: dict[int, int] = {}  # task -> the track its arrows start and end at
    for tid, (label, members) in enumerate(tracks, start=pid + 1):
        events += [_meta("thread_name", pid, tid, name=label), _meta("thread_sort_index", pid, tid, sort_index=tid)]
        for i in members:
            home.setdefault(i, tid)
            ts = schedule.start[i] / ticks_per_us
            dur = (schedule.end[i] - schedule.start[i]) / ticks_per_us
            spans.append({"ph": "X", "name": tasks[i].name, "cat": "task", "pid": pid, "tid": tid, "ts": ts, "dur": dur,
                          "args": {"task": i}})  # fmt: skip
    for memory, curve in schedule.memory.items():
        spans += [
            {"ph": "C", "name": memory, "pid": pid, "tid": 0, "ts": at / ticks_per_us, "args": {"bytes": level}}
            for at, level in curve
        ]
    if flows:
        spans += _arrows(tasks, schedule, home, ticks_per_us, pid)
    spans.sort(key=lambda event: event["ts"])
    return {"displayTimeUnit": "ns", "traceEvents": events + spans}


def _meta(kind: str, pid: int, tid: int, **args: object) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}


def _arrows(
    tasks: Sequence[Task], schedule: Schedule, home: dict[int, int], ticks_per_us: int, pid: int
) -> list[dict[str, Any]]:
    arrows: list[dict[str, Any]] = []
    for i, task in enumerate(tasks):
        for j in task.after:
            shared = {"name": "after", "cat": "dependence", "pid": pid, "id": len(arrows) // 2}
            arrows += [
                {"ph": "s", "tid": home[j], "ts": schedule.start[j] / ticks_per_us, **shared},
                {"ph": "f", "bp": "e", "tid": home[i], "ts": schedule.start[i] / ticks_per_us, **shared},
            ]
    return arrows


def _tracks(tasks: Sequence[Task], resources: Sequence[Resource], schedule: Schedule) -> list[tuple[str, list[int]]]:
    """(label, task indices) per track, in the order of the resources; tasks on no resource come last."""
    users: dict[str, list[int]] = {r.name: [] for r in resources}
    loose: list[int] = []
    for i in sorted(range(len(tasks)), key=lambda i: (schedule.start[i], schedule.end[i], i)):
        names = [*tasks[i].resources, *(name for name, _ in tasks[i].shares)]
        for name in names:
            users[name].append(i)
        if not names:
            loose.append(i)
    tracks: list[tuple[str, list[int]]] = []
    for label, members in [*users.items(), ("no resource", loose)]:
        lanes = _lanes(members, schedule)
        tracks += [(label if k == 0 else f"{label} ({k + 1})", lane) for k, lane in enumerate(lanes)]
    return tracks


def _lanes(members: list[int], schedule: Schedule) -> list[list[int]]:
    """Tasks sorted by start, split into the fewest lanes in which none overlap."""
    lanes: list[list[int]] = []
    free_at: list[tuple[int, int]] = []
    for i in members:
        if free_at and free_at[0][0] <= schedule.start[i]:
            _, lane = heapq.heappop(free_at)
        else:
            lane = len(lanes)
            lanes.append([])
        lanes[lane].append(i)
        heapq.heappush(free_at, (schedule.end[i], lane))
    return lanes
