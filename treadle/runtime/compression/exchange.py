"""The exchange of one iteration's gradients after another, as planned.

What runs on the device, where the backward pass runs, is executed by the thread that brings gradients, which it delays
as the plan says: when a gradient is ready, and in `finish`. Collectives run on a thread for each link (lanes.py), what
runs on the host on a thread for each of its workers. On a GPU these threads only put work onto streams.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Condition
from typing import NamedTuple

import torch
from torch import Tensor

from treadle.planner.errors import CheckFailed, TreadleError
from treadle.runtime.compression.group_run import GroupRun
from treadle.runtime.compression.lanes import Issue, Lanes
from treadle.runtime.compression.streams import HostOnly, StepStreams

NAMING_SECONDS = 3.0
"""How long a failed collective waits for the name of the rank that ended."""


class StepTime(NamedTuple):
    """When a step ran, ns since the first gradient of the iteration was ready. On a GPU: when it was queued."""

    group: int
    step: int
    start_ns: int
    end_ns: int


class PlannedExchange:
    """Gradients of `sizes` elements in consecutive groups.

    `groups` has the numbers of the first and the last gradient of each run. `put` is called once for each gradient in
    an iteration, in any order and on one thread at a time, then `finish`. An error of any thread is raised by both, and
    from then on. `lost_within` gives the rank that ended, if one does within the seconds.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        groups: Sequence[tuple[int, int]],
        runs: Sequence[GroupRun],
        order: Sequence[Issue],
        host_workers: int = 1,
        streams: StepStreams | None = None,
        lost_within: Callable[[float], int | None] = lambda seconds: None,
    ) -> None:
        self.sizes, self.groups, self.runs = sizes, groups, runs
        self.group_of = [number for number, (first, last) in enumerate(groups) for _ in range(first, last + 1)]
        self.offsets = [sum(sizes[first:each]) for first, last in groups for each in range(first, last + 1)]
        self.streams, self.lost_within = streams or HostOnly(), lost_within
        self.changed = Condition()
        self.failure: BaseException | None = None
        self.on_device: deque[tuple[int, int]] = deque()
        self.hosts = [ThreadPoolExecutor(1, f"treadle-host-{worker}") for worker in range(host_workers)]
        self.lanes = Lanes(order, lambda issue: self._execute(issue.group, issue.step))
        self.times: list[StepTime] = []
        self._begin()

    def put(self, gradient: int, values: Tensor) -> None:
        """Take a gradient that is ready, and do what is due on the device. It must stay as it is until `finish`."""
        if not self.arrived:
            self.began_ns = time.monotonic_ns()
        group = self.group_of[gradient]
        run, start, size = self.runs[group], self.offsets[gradient], self.sizes[gradient]
        in_place = size == run.elements and run.steps[0].startswith("compress@")
        if not in_place:
            run.flat[start : start + size].view(values.shape).copy_(values)
        self.arrived.add(gradient)
        self.missing[group] -= 1
        if not self.missing[group]:
            run.start(values.detach().reshape(-1) if in_place else run.flat)
            self.streams.begin(group)
            self._advance(group, 0)
        while self._run_on_device():
            pass

    def finish(self) -> None:
        """Return when all sums are there (on a GPU: for later work of the current stream)."""
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.failure or self.on_device or not self.unfinished)
                if not self.unfinished and not self.failure:
                    break
            self._run_on_device()
        self.streams.join()
        self.last, self.times = tuple(self.times), []
        self._begin()

    def mean_into(self, gradient: int, out: Tensor) -> None:
        """Write the mean over ranks, after `finish` and before the next `put`."""
        run, start = self.runs[self.group_of[gradient]], self.offsets[gradient]
        assert run.values is not None
        torch.div(run.values[start : start + self.sizes[gradient]].view(out.shape), run.grid.ranks("flat"), out=out)

    def fail(self, error: BaseException) -> None:
        """End the exchange: `put` and `finish` raise the error."""
        with self.changed:
            self.failure = self.failure or error
            self.changed.notify_all()

    def close(self) -> None:
        self.lanes.close()
        for worker in self.hosts:
            worker.shutdown(wait=False)

    def _begin(self) -> None:
        self.arrived: set[int] = set()
        self.missing = [last - first + 1 for first, last in self.groups]
        self.unfinished = len(self.groups)

    def _advance(self, group: int, step: int) -> None:
        """Hand step `step` of a group to what runs it; there is none after the last."""
        steps = self.runs[group].steps
        word, _, where = steps[step].partition("@") if step < len(steps) else ("", "", "")
        if word in ("compress", "decompress") and where == "host":
            self.hosts[group % len(self.hosts)].submit(self._execute, group, step)
        elif word and where != "device":
            self.lanes.offer(group, step)
        else:
            with self.changed:
                if word:
                    self.on_device.append((group, step))
                else:
                    self.unfinished -= 1
                self.changed.notify_all()

    def _run_on_device(self) -> bool:
        """Execute what has been ready on the device for longest, if anything."""
        with self.changed:
            if self.failure is not None:
                raise self.failure
            if not self.on_device:
                return False
            group, step = self.on_device.popleft()
        self._execute(group, step)
        return True

    def _execute(self, group: int, step: int) -> None:
        start, place = time.monotonic_ns(), self.runs[group].steps[step].partition("@")[2]
        try:
            with self.streams.on(place if place != "host" else f"host {group % len(self.hosts)}", group):
                self.runs[group].step(step)
        except BaseException as error:
            self.fail(self._explained(error))
            return
        self.times.append(StepTime(group, step, start - self.began_ns, time.monotonic_ns() - self.began_ns))
        self._advance(group, step + 1)

    def _explained(self, error: BaseException) -> BaseException:
        """One line, with the rank that ended if one did."""
        if isinstance(error, TreadleError) or not isinstance(error, RuntimeError):
            return error
        lost = self.lost_within(NAMING_SECONDS)
        return error if lost is None else lost_rank(lost)


def lost_rank(rank: int) -> CheckFailed:
    return CheckFailed(f"rank {rank} ended; gradients cannot be exchanged without it")
