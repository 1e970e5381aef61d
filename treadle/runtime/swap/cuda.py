"""A swap plan on a GPU: one arena, a stream each for operators, copies in and copies out, and events between them.

All nodes of an iteration are issued in the order in which the simulation starts them; the host waits for nothing until
the last one. Host memory is pinned and allocated once, so that copies run while operators do.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from treadle.planner.errors import InputError, TreadleError
from treadle.runtime.swap.cpu import STREAMS, Spans
from treadle.runtime.swap.step import StepNode, SwapStep
from treadle.runtime.swap.work import StepMemory

COUNTERS = ("allocated_bytes.all.current", "reserved_bytes.all.current", "segment.all.current", "num_alloc_retries")
"""Statistics of the allocator that no iteration changes after warm-up."""


class Streams:
    """The three streams of one GPU, and an event for each node for which another stream waits. `api` is `torch.cuda`,
    or what stands in for it."""

    def __init__(self, step: SwapStep, device: torch.device, *, poison: bool = False, api: Any = torch.cuda) -> None:
        self.step, self.device, self.api = step, device, api
        self.streams = {name: api.Stream(device) for name in STREAMS}
        self.poison = poison

    @property
    def poison(self) -> bool:
        """Whether places are overwritten as soon as they are given up; drops then are nodes of stream `out`."""
        return self._poison

    @poison.setter
    def poison(self, poison: bool) -> None:
        self._poison = poison
        self.waits = waits_of(self.step.nodes, keep_drops=poison)
        self.events = {node: self.api.Event() for node in sorted({node for waits in self.waits for node in waits})}

    def run(
        self, memory: StepMemory, watching: AbstractContextManager[object] | None = None, timed: bool = False
    ) -> Spans:
        """One iteration; returns when the GPU is done. `timed` measures each node, which costs a little. Raises
        InputError for an operator that raises. Nothing of a failed iteration can be used."""
        count = len(self.step.nodes)
        spans = Spans(count)
        marks: list[Any] = [self.api.Event(enable_timing=True) for _ in range(2 * count + 1)] if timed else []
        before = self.api.current_stream(self.device)
        for stream in self.streams.values():
            stream.wait_stream(before)
        with torch.no_grad():
            if timed:
                marks[-1].record(self.streams["compute"])
            for number, node in enumerate(self.step.nodes):
                if node.kind == "drop" and not self.poison:
                    continue
                work = memory.work(number)
                stream = self.streams["out" if node.kind == "drop" else node.kind]
                for other in self.waits[number]:
                    stream.wait_event(self.events[other])
                with self.api.stream(stream):
                    if self.poison:
                        work.spoil()
                    if timed:
                        marks[2 * number].record(stream)
                    with (watching if watching is not None and node.kind == "compute" else None) or nullcontext():
                        self._issue(node, work.run)
                    if timed:
                        marks[2 * number + 1].record(stream)
                    if self.poison:
                        work.poison()
                if number in self.events:
                    self.events[number].record(stream)
        for stream in self.streams.values():
            before.wait_stream(stream)
        before.synchronize()
        for number, node in enumerate(self.step.nodes if timed else ()):
            if node.kind != "drop":
                # in ms since the first mark; the offset keeps a start of 0 from looking like no start
                spans.start[number] = 1 + round(marks[-1].elapsed_time(marks[2 * number]) * 1e6)
                spans.end[number] = 1 + round(marks[-1].elapsed_time(marks[2 * number + 1]) * 1e6)
        return spans

    def counters(self) -> dict[str, int]:
        """What the allocator counts, as far as an iteration must not change it."""
        counts = self.api.memory_stats(self.device)
        return {name: int(counts.get(name, 0)) for name in COUNTERS}

    def _issue(self, node: StepNode, run: Any) -> None:
        try:
            run()
        except TreadleError:
            raise
        except Exception as error:
            text = " ".join(str(error).split())[:300]
            what = f"operator {node.item!r}" if node.kind == "compute" else f"the copy of {node.item!r}"
            raise InputError(f"{what} raised {type(error).__name__}: {text}", where=self.step.name) from error


def waits_of(nodes: Sequence[StepNode], keep_drops: bool = False) -> list[list[int]]:
    """For each node the nodes of other streams whose events its stream has to wait for, and has not waited for yet.

    A stream runs its nodes in order, so of each other stream only the last counts. A drop is on no stream: a
    wait for it is one for what it waits for; with `keep_drops` it is on stream `out`.
    """
    stream = ["out" if keep_drops and node.kind == "drop" else node.kind for node in nodes]
    stands: list[set[int]] = []
    reached: dict[str, dict[str, int]] = {name: {} for name in STREAMS}
    found: list[list[int]] = []
    for number, node in enumerate(nodes):
        before = {known for other in node.after for known in stands[other]}
        mine = stream[number]
        stands.append(before if mine == "drop" else {number})
        waits: list[int] = []
        if mine != "drop":
            for other in sorted(before, reverse=True):
                theirs = stream[other]
                if theirs != mine and reached[mine].get(theirs, -1) < other:
                    reached[mine][theirs] = other
                    waits.append(other)
        found.append(sorted(waits))
    return found
