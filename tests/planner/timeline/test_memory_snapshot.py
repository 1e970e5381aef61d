"""Allocations as a memory snapshot: what PyTorch's own reader prints of it, and what its page relies on."""

from __future__ import annotations

import pickle
import pickletools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.planner.timeline.allocations import Allocations, MemoryEvent, PlannedBlock
from treadle.planner.timeline.memory_snapshot import memory_snapshot, pickled

READ_BY_THE_PAGE = {
    *("PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1"),
    *("BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE"),
    *("TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_DICT", "SETITEM", "SETITEMS", "BINGET", "LONG_BINGET", "BINPUT"),
    *("LONG_BINPUT", "MEMOIZE"),
}
"""The operations of the unpickler of PyTorch's MemoryViz.js."""

WEIGHTS, OUTPUT, NEXT, LATE = (
    PlannedBlock("weights", "parameters", 1000),
    PlannedBlock("conv", "activations", 300, 4, "forward"),
    PlannedBlock("relu", "activations", 200, 5, "forward"),
    PlannedBlock("linear", "activations", 300, 7, "forward"),
)
STEP = Allocations(
    (WEIGHTS, OUTPUT, NEXT, LATE),
    (
        MemoryEvent(0, 0, False),
        MemoryEvent(0, 1, False),
        MemoryEvent(5000, 2, False),
        MemoryEvent(5000, 1, True),
        MemoryEvent(9000, 3, False),
    ),
)


def test_events_segments_and_frames_worked_by_hand():
    snapshot = memory_snapshot(STEP, "net.json")
    (trace,) = snapshot["device_traces"]
    assert [(e["action"], e["addr"], e["size"], e["time_us"]) for e in trace] == [
        ("alloc", 0, 1000, 0),
        ("alloc", 1000, 300, 0),
        ("alloc", 1300, 200, 5),
        ("free_requested", 1000, 300, 5),
        ("free_completed", 1000, 300, 5),
        ("alloc", 1000, 300, 9),
        ("snapshot", 0, 0, 9),
    ]
    assert trace[1]["frames"] == [
        {"filename": "net.json", "line": 4, "name": "conv"},
        {"filename": "net.json", "line": 4, "name": "forward"},
    ]
    (segment,) = snapshot["segments"]
    assert (segment["total_size"], segment["allocated_size"]) == (1500, 1500)
    assert [(b["address"], b["size"], b["state"]) for b in segment["blocks"]] == [
        (0, 1000, "active_allocated"),
        (1000, 300, "active_allocated"),
        (1300, 200, "active_allocated"),
    ]
    assert STEP.peak_bytes == 1500


def test_pytorchs_own_reader_prints_it():
    viz = pytest.importorskip("torch.cuda._memory_viz")
    snapshot = pickle.loads(pickled(STEP, "net.json"))
    assert "total_allocated: 1.5KiB" in viz.segsum(snapshot)
    assert viz.trace(snapshot).splitlines()[1:4] == [
        "7 entries", "a = seg_0[0:1000.0B]", "b = seg_0[1000:300.0B]",
    ]  # fmt: skip


def test_the_page_reads_the_pickle_and_finds_the_category_it_needs():
    data = pickled(STEP, "net.json")
    assert {operation.name for operation, _, _ in pickletools.genops(data)} <= READ_BY_THE_PAGE
    categories = {event["category"] for event in pickle.loads(data)["device_traces"][0]}
    assert "unknown" in categories


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.booleans(), st.integers(0, 30)), max_size=40))
def test_no_two_blocks_share_bytes_and_the_end_is_what_is_left(choices):
    blocks, events, live = [], [], []
    for size, frees, which in choices:
        if frees and live:
            events.append(MemoryEvent(0, live.pop(which % len(live)), True))
        else:
            live.append(len(blocks))
            events.append(MemoryEvent(0, len(blocks), False))
            blocks.append(PlannedBlock("x", "activations", size))
    snapshot = memory_snapshot(Allocations(tuple(blocks), tuple(events)), "p")
    used: dict[int, int] = {}
    for event in snapshot["device_traces"][0]:
        begin, end = event["addr"], event["addr"] + event["size"]
        if event["action"] == "alloc":
            assert all(end <= other or other + size <= begin for other, size in used.items())
            used[begin] = event["size"]
        elif event["action"] == "free_completed":
            assert used.pop(begin) == event["size"]
    (segment,) = snapshot["segments"]
    left = {b["address"]: b["size"] for b in segment["blocks"] if b["state"] == "active_allocated"}
    assert left == used
    assert sum(b["size"] for b in segment["blocks"]) == segment["total_size"]
