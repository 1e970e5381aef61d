"""A swap plan on the CPU: the device is an arena in host memory, its three streams are threads.

A thread runs the nodes of its stream in the order of issue; a node waits until the nodes that it names have ended, and
for nothing else. With `poison` a place is overwritten when a node starts to fill it and as soon as it is given up, so
that a node that reads or writes too early or too late changes the results.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from treadle.planner.errors import CheckFailed, InputError, TreadleError
from treadle.runtime.swap.emulation import EmulatedLink, Emulation
from treadle.runtime.swap.step import StepNode, SwapStep
from treadle.runtime.swap.work import NodeActions, StepMemory

STREAMS = ("compute", "in", "out")
LOOK = 1.0
"""Seconds between two looks at whether the threads are alive."""


class Spans:
    """When each node of an iteration ran, in ns of one clock."""

    def __init__(self, nodes: int) -> None:
        self.start, self.end = [0] * nodes, [0] * nodes

    @property
    def makespan_ns(self) -> int:
        """From the first start to the last end."""
        return max(self.end, default=0) - min((start for start in self.start if start), default=0)


class Threads:
    """The threads of the three streams; they live as long as this object."""

    def __init__(self, step: SwapStep, *, poison: bool = False, timeout: float | None = None) -> None:
        self.step, self.poison, self.timeout = step, poison, timeout
        self.emulation: Emulation | None = None
        self.queues: dict[str, queue.SimpleQueue[_Iteration | None]] = {name: queue.SimpleQueue() for name in STREAMS}
        self.threads = [
            threading.Thread(target=_serve, args=(name, posts), name=f"treadle {name}", daemon=True)
            for name, posts in self.queues.items()
        ]
        for thread in self.threads:
            thread.start()
        self.close = weakref.finalize(self, _stop, list(self.queues.values()))

    def run(self, memory: StepMemory, watching: AbstractContextManager[object] | None = None) -> Spans:
        """One iteration. `watching` is entered around every operator.

        Raises InputError for an operator that raises, CheckFailed where nodes wait for each other, or for longer than
        the time-out. Nothing of a failed iteration can be used.
        """
        iteration = _Iteration(self.step, memory, self.emulation, self.poison, watching or nullcontext())
        iteration.start()
        for posts in self.queues.values():
            posts.put(iteration)
        end = None if self.timeout is None else time.monotonic() + self.timeout
        try:
            while not iteration.over(LOOK if end is None else min(LOOK, max(end - time.monotonic(), 0.0))):
                if end is not None and time.monotonic() >= end:
                    text = f"not done after {self.timeout:g} s; {iteration.standing()}"
                    iteration.fail(CheckFailed(f"{self.step.name}: {text}"))
                    break
                if not all(thread.is_alive() for thread in self.threads):
                    iteration.fail(CheckFailed(f"{self.step.name}: a thread of the step ended in its midst"))
                    break
        except BaseException as error:  # an interrupt: the threads stop before the next node
            iteration.fail(error)
            raise
        if iteration.failure is not None:
            raise iteration.failure
        return iteration.spans


def _serve(stream: str, posts: queue.SimpleQueue[_Iteration | None]) -> None:
    with torch.no_grad():
        while (iteration := posts.get()) is not None:
            iteration.work(stream)
            del iteration


def _stop(queues: Sequence[queue.SimpleQueue[_Iteration | None]]) -> None:
    for posts in queues:
        posts.put(None)


class _Iteration:
    def __init__(
        self,
        step: SwapStep,
        memory: StepMemory,
        emulation: Emulation | None,
        poison: bool,
        watching: AbstractContextManager[object],
    ) -> None:
        self.name, self.nodes, self.memory, self.poison = step.name, step.nodes, memory, poison
        self.emulation, self.watching = emulation, watching
        self.link = EmulatedLink(emulation) if emulation is not None else None
        self.spans = Spans(len(self.nodes))
        self.failure: BaseException | None = None
        self._changed = threading.Condition()
        self._done = bytearray(len(self.nodes))
        self._at: dict[str, int | None] = dict.fromkeys(STREAMS)
        """The node for which each stream that still has some waits, None while it runs one."""
        self._drops: dict[int, list[int]] = {}
        for number, node in enumerate(self.nodes):
            for before in node.after if node.kind == "drop" else ():
                self._drops.setdefault(before, []).append(number)

    def start(self) -> None:
        """What waits for nothing and is on no stream."""
        for number, node in enumerate(self.nodes):
            if node.kind == "drop" and not node.after:
                self._end(number)

    def work(self, stream: str) -> None:
        """Run the nodes of `stream`, one after the other."""
        number = -1
        try:
            for number, node in enumerate(self.nodes):
                if node.kind == stream:
                    if not self._wait(stream, number, node):
                        return
                    work = self.memory.work(number)
                    self.spans.start[number] = time.perf_counter_ns()
                    self._run(work, node)
                    self.spans.end[number] = time.perf_counter_ns()
                    self._end(number)
        except BaseException as error:
            self.fail(self._described(error, self.nodes[number]))
        finally:
            with self._changed:
                del self._at[stream]
                self._look_for_deadlock()
                self._changed.notify_all()

    def over(self, timeout: float) -> bool:
        """Wait until all threads are through, or one has failed, or for `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._at or self.failure is not None, timeout)

    def fail(self, error: BaseException) -> None:
        """Keep the first error and let no thread start another node."""
        with self._changed:
            self.failure = self.failure or error
            self._changed.notify_all()

    def standing(self) -> str:
        """Where each thread is."""
        with self._changed:
            waits = [f"{stream!r} waits for {self._waits(at)}" for stream, at in self._at.items() if at is not None]
            runs = [f"{stream!r} runs a node" for stream, at in self._at.items() if at is None]
        return ", ".join([*runs, *waits])

    def _run(self, work: NodeActions, node: StepNode) -> None:
        if self.emulation is None or self.link is None:
            pace: AbstractContextManager[object] = nullcontext()
        elif node.kind == "compute":
            pace = self.emulation.computing(node.item)
        else:
            pace = self.link.copying(node.kind, work.copied)
        if self.poison:
            work.spoil()
        with pace, self.watching if node.kind == "compute" else nullcontext():
            work.run()
        if self.poison:
            work.poison()

    def _wait(self, stream: str, number: int, node: StepNode) -> bool:
        """Until the nodes before have ended; False where the iteration has failed."""
        with self._changed:
            self._at[stream] = number
            self._look_for_deadlock()
            self._changed.wait_for(lambda: self.failure is not None or self._ready(number))
            self._at[stream] = None
            return self.failure is None

    def _ready(self, number: int) -> bool:
        return all(self._done[before] for before in self.nodes[number].after)

    def _end(self, number: int) -> None:
        """`number` has ended, and so have the drops that waited for nothing else."""
        pending = [number]
        while pending:
            ended = pending.pop()
            with self._changed:
                self._done[ended] = 1
                pending += self._settled(ended)
                self._changed.notify_all()

    def _settled(self, ended: int) -> Iterator[int]:
        for drop in self._drops.get(ended, ()):
            if not self._done[drop] and self._ready(drop):
                if self.poison:
                    self.memory.work(drop).poison()
                yield drop

    def _look_for_deadlock(self) -> None:
        blocked = list(self._at.values())
        if blocked and self.failure is None and all(at is not None and not self._ready(at) for at in blocked):
            waits = ", ".join(f"{stream!r} for {self._waits(at)}" for stream, at in self._at.items())
            self.failure = CheckFailed(f"{self.name}: the streams wait for each other: {waits}")
            self._changed.notify_all()

    def _waits(self, at: int | None) -> str:
        assert at is not None
        missing = [before for before in self.nodes[at].after if not self._done[before]]
        return f"node {missing[0]} ({_label(self.nodes[missing[0]])})" if missing else "its turn"

    def _described(self, error: BaseException, node: StepNode) -> BaseException:
        if isinstance(error, TreadleError | KeyboardInterrupt):
            return error
        text = " ".join(str(error).split())[:300]
        described = InputError(f"{_label(node)} raised {type(error).__name__}: {text}", where=self.name)
        described.__cause__ = error
        return described


def _label(node: StepNode) -> str:
    words = {"compute": "operator", "in": "the copy in of", "out": "the copy out of", "drop": "the drop of"}
    return f"{words[node.kind]} {node.item!r}"
