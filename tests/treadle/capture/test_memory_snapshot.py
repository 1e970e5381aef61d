"""PyTorch's memory snapshots as traces: what is live when, and which line allocated it."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.cuda._memory_viz import _profile_to_snapshot, segsum
from torch.profiler import profile

from treadle.capture.formats import import_trace
from treadle.capture.summary import summarize
from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.memory.extract.problem import problem_from_trace

TORCH = "/env/site-packages/torch"


def frame(file: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": file, "line": line, "name": name}


FORWARD = [frame(f"{TORCH}/nn/modules/linear.py", 130, "forward"), frame("/job/net.py", 7, "forward")]
BACKWARD = [frame(f"{TORCH}/autograd/graph.py", 800, "_engine_run_backward"), frame("/job/train.py", 20, "main")]
ADAM = [frame(f"{TORCH}/optim/adam.py", 150, "_init_group"), frame("/job/train.py", 21, "main")]


def alloc(addr: int, size: int, frames: Any, at: int = 0) -> dict[str, Any]:
    return {"action": "alloc", "addr": addr, "size": size, "stream": 0, "time_us": 10**15 + at, "frames": frames}


def free(addr: int, size: int, at: int = 0) -> list[dict[str, Any]]:
    shared = {"addr": addr, "size": size, "stream": 0, "time_us": 10**15 + at, "frames": []}
    return [{"action": "free_requested", **shared}, {"action": "free_completed", **shared}]


def block(address: int, size: int, state: str = "active_allocated", frames: Any = ()) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": list(frames)}


def segment(address: int, blocks: list[dict[str, Any]], device: int = 0) -> dict[str, Any]:
    size = sum(item["size"] for item in blocks)
    active = sum(item["size"] for item in blocks if item["state"] != "inactive")
    return {
        "device": device, "address": address, "total_size": size, "allocated_size": active, "active_size": active,
        "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0), "blocks": blocks,
    }  # fmt: skip


def written(folder: Path, snapshot: Any, name: str = "snapshot.pickle") -> Path:
    (folder / name).write_bytes(pickle.dumps(snapshot))
    return folder / name


@pytest.fixture
def step() -> dict[str, Any]:
    """A weight of 1000 bytes from before; 100 and 200 bytes in the forward pass, 300 in the backward pass; Adam's
    state of 400, which stays; the weight's gradient of 50, allocated before recording, becomes free."""
    events = [
        {"action": "segment_alloc", "addr": 4096, "size": 4096, "stream": 0, "frames": []},
        alloc(5096, 100, FORWARD, 1),
        alloc(5196, 200, FORWARD, 2),
        *free(5096, 100, 3),
        alloc(5396, 300, BACKWARD, 4),
        *free(5196, 200, 5),
        *free(9000, 50, 6),
        *free(5396, 300, 7),
        alloc(5096, 400, ADAM, 9),
    ]
    blocks = [block(4096, 1000), block(5096, 400, frames=ADAM), block(5496, 2696, "inactive")]
    return {
        "segments": [segment(4096, blocks)],
        "device_traces": [events],
        "allocator_settings": {"backends": "native"},
    }


def test_ops_are_what_the_allocator_did_named_by_the_users_own_lines(step, tmp_path):
    segsum(step)  # PyTorch's own reader accepts the input of this test
    trace = import_trace(written(tmp_path, step))
    assert store.loads(store.dumps(trace), "here", Trace) == trace
    assert (trace.source, trace.mode, trace.costs.model, trace.costs.device) == (
        "memory-snapshot", "train", "absent", "cuda:0",
    )  # fmt: skip
    found = [(op.target, op.phase) for op in trace.ops]
    assert found == [
        ("allocated before recording", "unknown"),
        ("allocated before recording", "unknown"),
        ("net.py:7:forward", "forward"),
        ("net.py:7:forward", "forward"),
        ("free", "unknown"),
        ("train.py:20:main", "backward"),
        ("free", "unknown"),
        ("free", "unknown"),
        ("free", "unknown"),
        ("train.py:21:main", "optimizer"),
        ("end of recording", "unknown"),
    ]
    assert [op.start_ns for op in trace.ops[2:5]] == [0, 1000, 2000]


def test_live_bytes_and_the_lines_of_the_peak(step, tmp_path):
    peak = summarize(import_trace(written(tmp_path, step)), 10)["peak"]
    base = 1000 + 50
    assert peak["curve"][1:] == [
        base, base + 100, base + 300, base + 300, base + 500, base + 500, base + 300, 1300, 1400, 1400,
    ]  # fmt: skip
    assert (peak["bytes"], peak["operator"]) == (base + 500, "train.py:20:main")
    assert peak["lines"] == [
        {"line": "allocated before recording", "blocks": 2, "bytes": 1050},
        {"line": "train.py:20:main", "blocks": 1, "bytes": 300},
        {"line": "net.py:7:forward", "blocks": 1, "bytes": 200},
    ]


def test_show_prints_the_lines_of_the_peak(step, tmp_path, capsys):
    packed = tmp_path / "snapshot.pickle.gz"
    packed.write_bytes(gzip.compress(pickle.dumps(step)))
    assert run(["trace", "import", str(packed), "-o", str(tmp_path / "s.json")]) == 0
    capsys.readouterr()
    assert run(["trace", "show", str(tmp_path / "s.json")]) == 0
    out = capsys.readouterr().out
    assert "Live at the peak by the line that allocated it" in out
    assert "train.py:20:main" in out
    assert "Operators by time" not in out


def test_a_request_that_failed_counts_at_its_event(step, tmp_path):
    step["device_traces"][0].append({"action": "oom", "size": 5000, "device_free": 7, "stream": 0, "frames": FORWARD})
    peak = summarize(import_trace(written(tmp_path, step)), 10)["peak"]
    assert (peak["operator"], peak["bytes"]) == ("out of memory net.py:7:forward", 1400 + 5000)


def test_the_device_with_the_most_events_is_taken(step, tmp_path):
    step["device_traces"] = [[alloc(1, 5, FORWARD)], step["device_traces"][0]]
    step["segments"] = [segment(0, [block(0, 7)]), segment(4096, step["segments"][0]["blocks"], device=1)]
    trace = import_trace(written(tmp_path, step))
    assert trace.costs.device == "cuda:1"
    assert summarize(trace, 1)["peak"]["bytes"] == 1550


def test_blocks_without_addresses_and_call_stacks_of_older_files_are_read(tmp_path):
    blocks = [{"size": 8, "state": "inactive"}, {"size": 16, "state": "active_allocated"}]
    older = {
        "segments": [{"address": 100, "total_size": 24, "stream": 0, "blocks": blocks}],
        "device_traces": [[{"action": "alloc", "addr": 900, "size": 4, "stream": 0}]],
    }
    trace = import_trace(written(tmp_path, older))
    assert [op.target for op in trace.ops] == ["allocated before recording", "unknown line", "end of recording"]
    assert [tensor.bytes for tensor in trace.tensors] == [16, 4]


def test_what_pytorch_makes_of_a_profile_peaks_where_its_own_curve_does(tmp_path):
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
    with profile(profile_memory=True, record_shapes=True, with_stack=True) as recorded:
        model(torch.randn(32, 64)).square().mean().backward()
    snapshot = _profile_to_snapshot(recorded)
    trace = import_trace(written(tmp_path, snapshot))
    live, most = 0, 0
    for event in snapshot["device_traces"][-1]:
        live += {"alloc": event["size"], "free_completed": -event["size"]}.get(event["action"], 0)
        most = max(most, live)
    before = sum(op.target == "allocated before recording" for op in trace.ops)
    resident = sum(tensor.bytes for tensor in trace.tensors[:before])
    assert before >= 4  # the parameters
    assert summarize(trace, 1)["peak"]["bytes"] == resident + most


@pytest.mark.parametrize(
    ("snapshot", "text"),
    [
        ([1, 2], "found a pickle of an array of 2 values, expected a memory snapshot"),
        ([segment(0, [block(0, 1)])], "found the segments of a memory snapshot only"),
        ({"device_traces": [[], []], "segments": []}, "without events; record them"),
        ({"device_traces": [[alloc(0, -3, [])]]}, r"\$\.device_traces\[0\]\[0\]\.size: found -3"),
        ({"device_traces": 3}, r"\$\.device_traces: found 3"),
        ({"device_traces": [[alloc(0, 3, [])] * 1000] * 3000}, "found 3,000,000 events, expected up to 2,000,000"),
    ],
)
def test_what_is_no_snapshot_ends_in_one_line(snapshot, text, tmp_path):
    with pytest.raises(InputError, match=text):
        import_trace(written(tmp_path, snapshot))


def test_names_that_could_control_a_terminal_do_not(tmp_path):
    frames = [frame("/x/a\x1b[2J.py", 3, "f\n")]
    trace = import_trace(written(tmp_path, {"device_traces": [[alloc(0, 3, frames)]]}))
    assert trace.ops[0].target == "a?[2J.py:3:f?"


def test_a_snapshot_is_not_planned(step, tmp_path):
    with pytest.raises(InputError, match="found a memory snapshot, expected operators"):
        problem_from_trace(import_trace(written(tmp_path, step)))
