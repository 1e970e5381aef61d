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

from treadle.planner.errors import TreadleError
from treadle.runtime.compression.group_run import GroupRun
from treadle.runtime.compression.lanes import Issue, Lanes
from treadle.runtime.compression.streams import HostOnly, StepStreams
from treadle.runtime.watch import NAMING_SECONDS, lost_rank


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
    from then on. `lost_within` gives the rank that ended, if one does within the seconds. `joined` gives the memory in
    which a group's gradients lie one after the other, which the exchange may change, None where they are to be copied.
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
        joined: Callable[[int], Tensor | None] = lambda group: None,
    ) -> None:
        self.sizes, self.groups, self.runs = sizes, groups, runs
        self.ranks = runs[0].grid.ranks("flat")
        self.group_of = [number for number, (first, last) in enumerate(groups) for _ in range(first, last + 1)]
        self.streams, self.lost_within, self.joined = streams or HostOnly(), lost_within, joined
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
        self.arrived[gradient] = values
        self.missing[group] -= 1
        if not self.missing[group]:
            self.runs[group].start(self._gathered(group))
            self.streams.begin(group)
            self._advance(group, 0)
        if self.on_device or self.failure:
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

    def means_into(self, group: int, out: Tensor) -> None:
        """Write the means over ranks of all gradients of a group, one after the other, after `finish` and before the
        next `put`."""
        torch.div(self._sum(group), self.ranks, out=out)

    def mean_into_each(self, group: int, outs: Sequence[Tensor]) -> None:
        """As `means_into`, a tensor for each gradient."""
        means = self._sum(group).div_(self.ranks).split([out.numel() for out in outs])
        torch._foreach_copy_(list(outs), [mean.view(out.shape) for mean, out in zip(means, outs, strict=True)])

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
        self.arrived: dict[int, Tensor] = {}
        self.missing = [last - first + 1 for first, last in self.groups]
        self.unfinished = len(self.groups)

    def _gathered(self, group: int) -> Tensor:
        """The gradients of a group, one after the other. Only a single one that is compressed first stays where it is:
        collectives change what they are given."""
        joined, run = self.joined(group), self.runs[group]
        if joined is not None:
            return joined
        first, last = self.groups[group]
        found = [self.arrived[each].detach().reshape(-1) for each in range(first, last + 1)]
        if len(found) == 1 and run.steps[0].startswith("compress@"):
            return found[0]
        return torch.cat(found, out=run.flat)

    def _sum(self, group: int) -> Tensor:
        values = self.runs[group].values
        assert values is not None
        return values[: self.runs[group].elements]

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
