"""When pieces of a checkpoint may move: those of a span once the message before it is done, own copies once the message
has begun during which they are made."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
from treadle.planner.passes.checkpoint.problem import CheckpointProblem

NUMBER = re.compile(r" (\d+)$")
"""Messages are named by a word and how many of the training's messages came before in the iteration."""


class Releases(NamedTuple):
    """What may move by how many messages of an iteration are done, or have begun: all spans up to one, and the own
    copies of all messages up to one (-1: none yet)."""

    spans: tuple[int, ...]
    own: tuple[int, ...]


def releases_of(decisions: CheckpointDecisions, messages: int) -> Releases:
    """Those of a plan in an iteration of that many messages. Where the plan has another number, spans keep their place
    in proportion."""
    problem = decisions.problem
    planned = planned_messages(problem)
    spans, own = [-1] * (messages + 1), [-1] * (messages + 1)
    for number, span in enumerate(problem.spans):
        after = 0 if decisions.variant == "blocking" else number_of(span.after) + 1
        spans[scaled(after, planned, messages)] = number
    for number in range(len(problem.messages)):
        first = number_of(problem.messages[number - 1].name) + 1 if number else 0
        own[scaled(first + 1, planned, messages)] = number
    return Releases(tuple(accumulate(spans, max)), tuple(accumulate(own, max)))


def number_of(name: str) -> int:
    """The number in the name of a message, -1 for what is none."""
    found = NUMBER.search(name)
    return int(found[1]) if found else -1


def planned_messages(problem: CheckpointProblem) -> int:
    """How many messages an iteration of the plan has; the last of several that overlap names them all."""
    names = [message.name for message in problem.messages] + [span.after for span in problem.spans]
    return max((number_of(name) + 1 for name in names), default=0)


def scaled(done: int, planned: int, messages: int) -> int:
    """How many of `messages` are done where `done` of `planned` would be, rounded up so that no span begins early."""
    return -(-done * messages // planned) if planned else 0


class IterationTimes(NamedTuple):
    """When the messages of an iteration began and were done, ns of a clock; `begin` and `end` are those of the
    iteration before its update."""

    begin: int
    began: tuple[int, ...]
    done: tuple[int, ...]
    end: int

    def idle_ns(self) -> list[int]:
        """How long the links were idle after each number of messages."""
        starts = [*self.began, self.end]
        ends = [self.begin, *self.done]
        latest = [max(ends[: place + 1]) for place in range(len(ends))]
        return [max(0, start - end) for start, end in zip(starts, latest, strict=True)]


class MessageCount:
    """Counts the messages of an iteration, and calls `on_begin` and `on_done` with how many have begun and are done.
    Messages may end on threads of their own."""

    def __init__(self, on_begin: Callable[[int], None], on_done: Callable[[int], None]) -> None:
        self.on_begin, self.on_done = on_begin, on_done
        self._lock = threading.Lock()
        self._begin = 0
        self._began: list[int] = []
        self._done: list[int] = []

    def start(self) -> None:
        """An iteration begins."""
        with self._lock:
            self._begin, self._began, self._done = time.monotonic_ns(), [], []

    def begin(self) -> None:
        with self._lock:
            self._began.append(time.monotonic_ns())
            number = len(self._began)
        self.on_begin(number)

    def done(self) -> None:
        with self._lock:
            self._done.append(time.monotonic_ns())
            number = len(self._done)
        self.on_done(number)

    def end(self) -> IterationTimes:
        """The update begins; all messages are done."""
        with self._lock:
            done = (*self._done, *(time.monotonic_ns() for _ in self._began[len(self._done) :]))
            return IterationTimes(self._begin, tuple(self._began), done, time.monotonic_ns())
