"""An iteration with a checkpoint as it happens: messages of the training and pieces in one queue of the link, copies to
the host on an engine of their own.

All machines do the same at the same time, so that one of them shows what all do: it receives a piece while it sends
one. A message waits for the pieces before it in the queue, a piece for the copy that frees its buffer, and the update
of the weights for all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import groupby

from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions, OwnPiece, StatePiece
from treadle.planner.passes.checkpoint.partition import copy_ns, transfer_ns
from treadle.planner.passes.checkpoint.problem import CheckpointProblem
from treadle.planner.timeline.simulator import Resource, Schedule, Task, simulate

TRAINING, LINK, ENGINE = "training", "link", "copy engine"
RESOURCES = (Resource(TRAINING), Resource(LINK), Resource(ENGINE))


def happens(decisions: CheckpointDecisions) -> Schedule:
    """When each task of an iteration and its checkpoint runs; the makespan is how long the iteration takes."""
    return simulate(tasks_of(decisions), RESOURCES)


def tasks_of(decisions: CheckpointDecisions) -> tuple[Task, ...]:
    """The tasks on RESOURCES: what the training computes in a span, the messages between two spans as one, pieces, and
    copies."""
    problem, made, now = decisions.problem, _Tasks(decisions.problem), 0
    by_span = {span: [*pieces] for span, pieces in groupby(decisions.pieces, lambda piece: piece.span)}
    if decisions.variant == "blocking":
        made.blocked(decisions.pieces)
        by_span.clear()
    own = deque(decisions.own)
    for place, (span, begin) in enumerate(zip(problem.spans, span_begins(problem), strict=True)):
        made.copy_own(own, begin)
        made.message(span.after, begin - now)
        if place + 1 == len(problem.spans):
            made.copy_own(own, problem.iteration_ns)
        made.send(by_span.get(place, ()))
        made.compute(f"until {span.before}", span.length_ns)
        now = begin + span.length_ns
    made.update(max(0, problem.iteration_ns - now))
    return tuple(made.tasks)


def span_begins(problem: CheckpointProblem) -> list[int]:
    """ns from the begin of the iteration at which each span begins: the end of the message that it comes after, or of
    the span before it."""
    ends, begins, free = {message.name: message.end_ns for message in problem.messages}, list[int](), 0
    for span in problem.spans:
        begins.append(max(free, ends.get(span.after, 0)))
        free = begins[-1] + span.length_ns
    return begins


class _Tasks:
    """Tasks as they are added, with those that the next ones wait for."""

    def __init__(self, problem: CheckpointProblem) -> None:
        self.problem, self.tasks = problem, list[Task]()
        self.training: tuple[int, ...] = ()
        self.queue: tuple[int, ...] = ()
        """The last of the link's queue."""
        self.copies: dict[int | None, int] = {}
        """The last copy out of each buffer, and with None of the state."""

    def add(self, name: str, ns: int, resource: str, after: Iterable[int]) -> tuple[int, ...]:
        self.tasks.append(Task(name, ns, (resource,), tuple(dict.fromkeys(after))))
        return (len(self.tasks) - 1,)

    def blocked(self, pieces: Iterable[StatePiece]) -> None:
        """Pieces before the training goes on."""
        self.send(pieces)
        self.training = self.queue

    def send(self, pieces: Iterable[StatePiece]) -> None:
        for piece in pieces:
            free = self.copies.get(piece.buffer)
            after = (*self.training, *self.queue, *(() if free is None else (free,)))
            sent = self.problem.alpha_ns + transfer_ns(piece.bytes, self.problem.link_rate)
            self.queue = self.add(f"copy {piece.copy}", sent, LINK, after)
            if copied := copy_ns(self.problem, piece.bytes):
                (self.copies[piece.buffer],) = self.add(f"buffer {piece.buffer}", copied, ENGINE, self.queue)

    def message(self, name: str, ns: int) -> None:
        if ns:
            self.training = self.queue = self.add(name, ns, LINK, (*self.training, *self.queue))

    def copy_own(self, own: deque[OwnPiece], until: int) -> None:
        """The next own pieces: those that go with messages before `until`."""
        while own and self.starts(own[0]) <= until:
            if copied := copy_ns(self.problem, own.popleft().bytes):
                (self.copies[None],) = self.add("own copy", copied, ENGINE, self.training)

    def starts(self, own: OwnPiece) -> int:
        return self.problem.iteration_ns if own.message is None else self.problem.messages[own.message].start_ns

    def compute(self, name: str, ns: int) -> None:
        if ns:
            self.training = self.add(name, ns, TRAINING, self.training)

    def update(self, ns: int) -> None:
        self.add("update", ns, TRAINING, (*self.training, *self.queue, *self.copies.values()))
