"""Idle spans of the links, from iterations as machines saw them ("GEMINI: Fast Failure Recovery in Distributed Training
with In-Memory Checkpoints").

Messages that overlap are one, with those after gaps that a latency fills. A span's length is the mean over the
iterations of a machine, of the machine where that is least: a link is idle only while both of its ends are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import pstdev
from typing import NamedTuple

from treadle.planner.errors import InputError
from treadle.planner.passes.checkpoint.problem import IdleSpan, TrainingMessage

BEGIN, UPDATE = "begin", "update"
"""What the first span follows, and what the last one ends with."""


class Sending(NamedTuple):
    """A message of an iteration by the word for its collective; ns from the begin of the iteration."""

    word: str
    start_ns: int
    end_ns: int


class Iteration(NamedTuple):
    """One iteration of one machine: its messages in the order in which they start, and from when the weights change,
    which no message of it reaches."""

    messages: tuple[Sending, ...]
    update_ns: int
    end_ns: int

    @property
    def reached(self) -> list[int]:
        """When the message and all before it have ended, after 0 for the begin."""
        ends = [0]
        for message in self.messages:
            ends.append(max(ends[-1], message.end_ns))
        return ends

    @property
    def gaps(self) -> list[int]:
        """ns without any message before each message, and before the update."""
        starts = (*(message.start_ns for message in self.messages), self.update_ns)
        return [max(0, start - end) for start, end in zip(starts, self.reached, strict=True)]


class JobTimeline(NamedTuple):
    """When the training of a job communicates."""

    iteration_ns: int
    messages: tuple[TrainingMessage, ...]
    spans: tuple[IdleSpan, ...]


def silent(iteration_ns: int) -> JobTimeline:
    """An iteration of whose messages nothing is known: one span."""
    return JobTimeline(iteration_ns, (), (IdleSpan(after=BEGIN, before=UPDATE, length_ns=iteration_ns),))


def timeline_of(machines: Sequence[Sequence[Iteration]], alpha_ns: int, where: str) -> JobTimeline:
    """The timeline of the iterations of several machines. Raises InputError, which names `where`, where two iterations
    have other messages."""
    every = [iteration for machine in machines for iteration in machine]
    words = _same_words(every, where)
    gaps = [_least_gap(machines, place) for place in range(len(words) + 1)]
    first = [place for place in range(len(words)) if place == 0 or gaps[place][0] > alpha_ns]
    last = [*(place - 1 for place in first[1:]), len(words) - 1] if first else []
    names = [f"{words[place]} {place}" for place in last]
    starts = [_mean([each.messages[place].start_ns for each in every]) for place in first]
    ends = [_mean([each.reached[place + 1] for each in every]) for place in last]
    messages = tuple(
        TrainingMessage(name=name, start_ns=start, end_ns=max(start, min(end, later)))
        for name, start, end, later in zip(names, starts, ends, (*starts[1:], *ends[-1:]), strict=True)
    )
    spans = [
        IdleSpan(after=after, before=before, length_ns=gaps[place][0], spread_ns=gaps[place][1])
        for place, (after, before) in zip((*first, len(words)), pairwise((BEGIN, *names, UPDATE)), strict=True)
        if before == UPDATE or gaps[place][0] > alpha_ns
    ]
    longest = max(-(-sum(each.end_ns for each in machine) // len(machine)) for machine in machines)
    return JobTimeline(max(1, longest), messages, tuple(spans))


def unsteady(spans: Sequence[IdleSpan], fill_ppm: int) -> int:
    """How many spans vary by more than what is left of them."""
    return sum(span.spread_ns * 10**6 > (10**6 - fill_ppm) * span.length_ns for span in spans)


def _same_words(every: Sequence[Iteration], where: str) -> list[str]:
    words = [message.word for message in every[0].messages]
    for number, other in enumerate(every):
        found = [message.word for message in other.messages]
        if found != words:
            place = next((at for at, pair in enumerate(zip(found, words, strict=False)) if pair[0] != pair[1]), None)
            what = f"{len(found)} messages" if place is None else f"{found[place]} as message {place}"
            expected = f"{len(words)}" if place is None else words[place]
            raise InputError(f"found {what} in iteration {number}, expected {expected} as in the first", where=where)
    return words


def _least_gap(machines: Sequence[Sequence[Iteration]], place: int) -> tuple[int, int]:
    """Mean and standard deviation of the gap before a message, on the machine with the least mean."""
    return min(_spread([iteration.gaps[place] for iteration in machine]) for machine in machines)


def _spread(values: Sequence[int]) -> tuple[int, int]:
    return _mean(values), round(pstdev(values))


def _mean(values: Sequence[int]) -> int:
    return sum(values) // len(values)
