"""Allocations in the form of PyTorch's memory snapshots, which docs.pytorch.org/memory_viz draws.

A snapshot is a dict that is pickled. What that page, and `torch.cuda._memory_viz`, need of it:

* `device_traces`: a list of events for each device. `alloc`, `free_requested` and `free_completed` have `addr`, `size`,
  `stream`, `time_us` and `frames`; an address is in use by one block at a time. A `category` colours a block; the page
  fails unless one event has the category `unknown`.
* `segments`: the memory in the end, as adjacent `blocks` (`active_allocated`, `inactive`) from `address` on. The page
  draws the earlier states of a segment by undoing events from there.
* Frames are shown as `filename:line:name`; the page reads pickles of protocol 2 to 4.
"""

from __future__ import annotations

import pickle
from bisect import bisect_left
from typing import Any

from treadle.planner.timeline.allocations import Allocations

PROTOCOL = 4


def pickled(allocations: Allocations, file: str) -> bytes:
    """The snapshot as the bytes of a file. `file` is what the frames call the plan."""
    return pickle.dumps(memory_snapshot(allocations, file), PROTOCOL)


def memory_snapshot(allocations: Allocations, file: str) -> dict[str, Any]:
    """The snapshot as plain values. A block whose address the plan leaves open takes the first place that fits."""
    memory = _FirstFit()
    addresses: dict[int, int] = {}
    trace: list[dict[str, Any]] = []
    for event in allocations.events:
        block = allocations.blocks[event.block]
        if not block.bytes:
            continue
        if not event.freed:
            fixed = block.address
            addresses[event.block] = memory.take(block.bytes) if fixed is None else fixed
        frames = _frames(allocations, event.block, file)
        actions = ("free_requested", "free_completed") if event.freed else ("alloc",)
        shared = {
            "addr": addresses[event.block],
            "size": block.bytes,
            "stream": 0,
            "time_us": event.time_ns // 1000,
            "frames": frames,
            "category": block.category,
        }
        trace += [{"action": action, **shared} for action in actions]
        if event.freed:
            address = addresses.pop(event.block)
            if block.address is None:
                memory.give(address, block.bytes)
    last: dict[str, Any] = {
        "addr": 0,
        "size": 0,
        "stream": 0,
        "time_us": trace[-1]["time_us"] if trace else 0,
        "frames": [],
    }
    trace.append({"action": "snapshot", **last, "category": "unknown"})
    return {
        "written_by": "treadle",
        "segments": [_segment(allocations, addresses, trace, file)],
        "device_traces": [trace],
    }


def _frames(allocations: Allocations, index: int, file: str) -> list[dict[str, Any]]:
    block = allocations.blocks[index]
    inner = {"filename": file, "line": block.line, "name": block.name}
    return [inner, *([{"filename": file, "line": block.line, "name": block.inside}] if block.inside else [])]


def _segment(
    allocations: Allocations, addresses: dict[int, int], trace: list[dict[str, Any]], file: str
) -> dict[str, Any]:
    """One segment up to the highest byte that was ever in use, with the blocks that are left in the end."""
    size = max((event["addr"] + event["size"] for event in trace), default=0)
    blocks: list[dict[str, Any]] = []
    at = 0
    for address, index in sorted((address, index) for index, address in addresses.items()):
        if address > at:
            blocks.append(_block(at, address - at, "inactive", []))
        count = allocations.blocks[index].bytes
        blocks.append(_block(address, count, "active_allocated", _frames(allocations, index, file)))
        at = address + count
    if size > at:
        blocks.append(_block(at, size - at, "inactive", []))
    active = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
    return {
        "device": 0,
        "address": 0,
        "total_size": size,
        "allocated_size": active,
        "active_size": active,
        "requested_size": active,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def _block(address: int, size: int, state: str, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": frames}


class _FirstFit:
    """Addresses from 0 on, the lowest that fits. `gaps` are free spans below `top`, as sorted (address, end)."""

    def __init__(self) -> None:
        self.gaps: list[tuple[int, int]] = []
        self.top = 0

    def take(self, size: int) -> int:
        for place, (start, end) in enumerate(self.gaps):
            if end - start >= size:
                self.gaps[place : place + 1] = [(start + size, end)] if end - start > size else []
                return start
        start = self.top
        if self.gaps and self.gaps[-1][1] == self.top:
            start = self.gaps.pop()[0]
        self.top = start + size
        return start

    def give(self, address: int, size: int) -> None:
        place = bisect_left(self.gaps, (address, 0))
        start, end = address, address + size
        if place < len(self.gaps) and self.gaps[place][0] == end:
            end = self.gaps.pop(place)[1]
        if place and self.gaps[place - 1][1] == start:
            place -= 1
            start = self.gaps.pop(place)[0]
        self.gaps.insert(place, (start, end))
