"""Times of streams of bytes that share resources and follow each other piece by piece: copies, sums, messages.

A stream is a fluid. At full speed it takes `work_us` and asks for a share of each of its resources; where these are too
small for all, all streams on the tightest one slow down by the same factor, and those held back elsewhere leave the
rest to the others (max-min fairness). A stream that follows another one works on what that one has finished: it starts
when the first piece is there, stays a piece behind, and runs no faster once it has caught up. Streams of one queue run
one at a time, in the order in which they become ready.

The number of events depends on the number of streams, not on that of pieces. `simulator` runs tasks that hold what
they need from start to end; here a task depends on the progress of another one, and time is no integer.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from treadle.planner.errors import InputError

NEAR = 1e-9
"""Share of a stream or resource that counts as nothing."""
LEAST_US = 1e-6
"""Work of a stream that has none: time goes on while it follows another one."""


@dataclass(frozen=True, slots=True)
class ByteStream:
    """`uses` are (resource, share of its capacity at full speed). It starts when all of `after` have ended and, where
    it `follows` another one, `delay_us` after the first `piece` of that one, a share of its work."""

    name: str
    work_us: float
    uses: tuple[tuple[str, float], ...] = ()
    after: tuple[int, ...] = ()
    follows: int | None = None
    delay_us: float = 0.0
    piece: float = 1.0
    queue: str | None = None


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """When each stream started and ended, and how long each resource worked at its full capacity, in us."""

    start_us: list[float]
    end_us: list[float]
    busy_us: dict[str, float]

    @property
    def makespan_us(self) -> float:
        return max(self.end_us, default=0.0)


def run_streams(streams: Sequence[ByteStream]) -> StreamTimes:
    """Run all streams from time 0. Raises InputError for streams that wait for each other, or without end."""
    return _Streams(streams).go()


class _Streams:
    """`done` is the share of each stream's work; `seen` says whether a stream may work on what it follows: not yet (0),
    piece by piece (1), on all of it (2)."""

    def __init__(self, streams: Sequence[ByteStream]) -> None:
        count = len(streams)
        self.streams = [each if each.work_us >= LEAST_US else replace(each, work_us=LEAST_US) for each in streams]
        self.now = 0.0
        self.done, self.start, self.end = [0.0] * count, [-1.0] * count, [-1.0] * count
        self.seen = [2 if each.follows is None else 0 for each in streams]
        self.waits = [len(each.after) + (each.follows is not None) for each in streams]
        self.next: list[list[int]] = [[] for _ in range(count)]
        self.followers: list[list[int]] = [[] for _ in range(count)]
        for index, each in enumerate(streams):
            for before in each.after:
                self.next[before].append(index)
            if each.follows is not None:
                self.followers[each.follows].append(index)
        self.speed: dict[int, float] = {}
        """Share of full speed of each stream that runs."""
        self.opening: dict[int, None] = {}
        """Streams that run and whose first piece is not done while others wait for it."""
        self.busy: dict[str, float] = defaultdict(float)
        self.queues: dict[str, deque[int]] = {}
        self.heap: list[tuple[float, int, int]] = []
        """(time, stream, what it then has seen)."""

    def go(self) -> StreamTimes:
        for index, waiting in enumerate(self.waits):
            if not waiting:
                self._queue(index)
        while self.speed or self.heap:
            self._share()
            self._advance(self._step_us())
        if stuck := [each.name for each, end in zip(self.streams, self.end, strict=True) if end < 0]:
            raise InputError(f"{len(stuck)} streams wait for each other, {stuck[0]} among them")
        return StreamTimes(self.start, self.end, dict(sorted(self.busy.items())))

    def _queue(self, index: int) -> None:
        """A stream is ready: it starts, or stands behind those of its queue."""
        name = self.streams[index].queue
        if name is not None:
            waiting = self.queues.setdefault(name, deque())
            waiting.append(index)
            if waiting[0] != index:
                return
        self._begin(index)

    def _begin(self, index: int) -> None:
        self.start[index] = self.now
        self.speed[index] = 0.0
        if self.followers[index]:
            self.opening[index] = None

    def _limit(self, index: int) -> float:
        """The share of its work that a stream may have done now."""
        before = self.streams[index].follows
        if before is None or self.seen[index] == 2:
            return inf
        return max(0.0, self.done[before] - self.streams[before].piece)

    def _share(self) -> None:
        """Speeds of all streams that run: all rise until a resource is full or what they follow holds them."""
        slopes: dict[int, float] = {}
        held = {i: self.streams[i].follows for i in self.speed if self.done[i] >= self._limit(i) - NEAR}

        def slope(index: int) -> float:
            if index not in slopes:
                slopes[index] = 1.0
                before = held.get(index)
                if before is not None:
                    slopes[index] = min(1.0, self._ratio(index, before) * slope(before)) if before in self.speed else 0
            return slopes[index]

        left: dict[str, float] = {}
        demand: dict[str, float] = defaultdict(float)
        users: dict[str, list[int]] = defaultdict(list)
        rising: dict[int, None] = {}
        for i in self.speed:
            self.speed[i] = 0.0
            if slope(i) > 0:
                rising[i] = None
                for name, share in self.streams[i].uses:
                    left[name] = 1.0
                    demand[name] += share * slopes[i]
                    users[name].append(i)
        level = 0.0
        while rising:
            target, full = 1.0, ""
            for name, wanted in demand.items():
                if wanted > NEAR and level + left[name] / wanted < target:
                    target, full = level + left[name] / wanted, name
            caps = {
                i: self._ratio(i, before) * self.speed[before] / slopes[i]
                for i in rising
                if (before := held.get(i)) is not None and before in self.speed and before not in rising
            }
            capped = min(caps.values(), default=inf)
            target = min(target, capped)
            for name, wanted in demand.items():
                left[name] -= wanted * (target - level)
            level = target
            if target >= 1.0:
                frozen = list(rising)
            elif capped <= target:
                frozen = [i for i, cap in caps.items() if cap <= target + NEAR]
            else:
                frozen = [i for i in users[full] if i in rising]
            for i in frozen:
                del rising[i]
                self.speed[i] = slopes[i] * level
                for name, share in self.streams[i].uses:
                    demand[name] -= share * slopes[i]

    def _ratio(self, index: int, before: int) -> float:
        """Speed of a stream for each of the one that it follows, where both make the same progress."""
        return self.streams[index].work_us / self.streams[before].work_us

    def _rate(self, index: int) -> float:
        """Share of its work for each us."""
        return self.speed.get(index, 0.0) / self.streams[index].work_us

    def _step_us(self) -> float:
        """Time until something changes."""
        least = self.heap[0][0] - self.now if self.heap else inf
        for i in self.speed:
            rate = self._rate(i)
            if rate > 0:
                least = min(least, (1 - self.done[i]) / rate)
                if i in self.opening and self.done[i] < self.streams[i].piece:
                    least = min(least, (self.streams[i].piece - self.done[i]) / rate)
            before = self.streams[i].follows
            if before is not None and self.seen[i] == 1:
                gap, slower = self._limit(i) - self.done[i], self._rate(before) if before in self.speed else 0.0
                if gap > NEAR and rate > slower:
                    least = min(least, gap / (rate - slower))
        if least == inf:
            raise InputError("streams wait for each other")
        return max(0.0, least)

    def _advance(self, step_us: float) -> None:
        self.now += step_us
        ended = []
        for i, speed in self.speed.items():
            each = self.streams[i]
            self.done[i] += speed / each.work_us * step_us
            for name, share in each.uses:
                self.busy[name] += share * speed * step_us
            if self.done[i] >= 1 - NEAR and self.seen[i] == 2:
                ended.append(i)
        for i in [i for i in self.opening if self.done[i] >= self.streams[i].piece - NEAR]:
            del self.opening[i]
            self._show(i, 1)
        while self.heap and self.heap[0][0] <= self.now + NEAR:
            _, i, seen = heapq.heappop(self.heap)
            if self.seen[i] == 0:
                self._arrived(i)
            self.seen[i] = max(self.seen[i], seen)
        for i in ended:
            self.done[i], self.end[i] = 1.0, self.now
            del self.speed[i]
            self.opening.pop(i, None)
            self._show(i, 2)
            for j in self.next[i]:
                self._arrived(j)
            queue = self.streams[i].queue
            if queue is not None:
                self.queues[queue].popleft()
                if self.queues[queue]:
                    self._begin(self.queues[queue][0])

    def _show(self, index: int, seen: int) -> None:
        for i in self.followers[index]:
            heapq.heappush(self.heap, (self.now + self.streams[i].delay_us, i, seen))

    def _arrived(self, index: int) -> None:
        self.waits[index] -= 1
        if not self.waits[index]:
            self._queue(index)
