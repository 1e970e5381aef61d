"""The trace file: what Perfetto and Chromium's viewer need of it."""

from __future__ import annotations

import json
from itertools import pairwise

from treadle.planner.timeline.chrome_trace import chrome_trace
from treadle.planner.timeline.simulator import Resource, Schedule, Task, simulate

TASKS = [
    Task("forward", 1500, ("gpu",), alloc=(("hbm", 100),)),
    Task("copy in", 1000, shares=(("pcie", 2),)),
    Task("copy out", 1000, shares=(("pcie", 2),), free=(("hbm", 100),), after=(0,)),
    Task("copy in again", 1001, shares=(("pcie", 2),), release=1400),
    Task("send", 500, ("gpu", "link"), after=(0, 1)),
    Task("mark", 0, after=(4,)),
]
RESOURCES = [Resource("gpu"), Resource("link"), Resource("pcie", shared=True, capacity=2)]


def made(flows: bool = True) -> tuple[Schedule, list[dict]]:
    schedule = simulate(TASKS, RESOURCES)
    trace = chrome_trace(TASKS, RESOURCES, schedule, flows=flows)
    assert json.loads(json.dumps(trace, allow_nan=False)) == trace
    assert set(trace) == {"displayTimeUnit", "traceEvents"}
    return schedule, trace["traceEvents"]


def test_every_event_has_what_its_phase_needs() -> None:
    needed = {
        "M": {"name", "args"},
        "X": {"name", "cat", "ts", "dur", "args"},
        "C": {"name", "ts", "args"},
        "s": {"name", "cat", "ts", "id"},
        "f": {"name", "cat", "ts", "id", "bp"},
    }
    _, events = made()
    assert {e["ph"] for e in events} == set(needed)
    for event in events:
        assert set(event) == needed[event["ph"]] | {"ph", "pid", "tid"}
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "C":
            assert all(isinstance(v, int) for v in event["args"].values())


def test_each_task_is_on_the_track_of_each_resource_it_uses() -> None:
    schedule, events = made()
    label = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert list(label.values()) == ["gpu", "link", "pcie", "pcie (2)", "no resource"]
    found = sorted((label[e["tid"]].removesuffix(" (2)"), e["args"]["task"]) for e in events if e["ph"] == "X")
    assert found == [
        ("gpu", 0), ("gpu", 4), ("link", 4), ("no resource", 5), ("pcie", 1), ("pcie", 2), ("pcie", 3)
    ]  # fmt: skip
    for event in events:
        if event["ph"] == "X":
            i = event["args"]["task"]
            assert event["name"] == TASKS[i].name
            assert event["ts"] == schedule.start[i] / 1000
            assert event["dur"] == (schedule.end[i] - schedule.start[i]) / 1000


def test_slices_of_one_track_never_overlap() -> None:
    _, events = made()
    tracks: dict[int, list[tuple[int, int]]] = {}
    for e in events:
        if e["ph"] == "X":
            tracks.setdefault(e["tid"], []).append((round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000)))
    for spans in tracks.values():
        spans.sort()
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_memory_is_a_counter() -> None:
    schedule, events = made()
    curve = [(e["ts"], e["args"]["bytes"]) for e in events if e["ph"] == "C"]
    assert curve == [(at / 1000, level) for at, level in schedule.memory["hbm"]]


def test_arrows_start_and_end_inside_their_slices() -> None:
    _, events = made()
    slices = {(e["tid"], e["ts"]): e["args"]["task"] for e in events if e["ph"] == "X"}
    ends = {(e["id"], e["ph"]): slices[e["tid"], e["ts"]] for e in events if e["ph"] in "sf"}
    arrows = {(ends[k, "s"], ends[k, "f"]) for k in range(len(ends) // 2)}
    assert arrows == {(j, i) for i, task in enumerate(TASKS) for j in task.after}
    assert not [e for e in made(flows=False)[1] if e["ph"] in "sf"]


def test_the_unit_of_time_is_the_callers() -> None:
    schedule = simulate(TASKS, RESOURCES)
    events = chrome_trace(TASKS, RESOURCES, schedule, ticks_per_us=1)["traceEvents"]
    assert next(e["dur"] for e in events if e["name"] == "forward") == 1500
