"""Steps before they have a threadblock and a number: what lowering orders, fuses and makes depend on each other.

Steps stand in one causal order over all ranks: run one after the other in that order they compute the collective.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from treadle.codegen.collective.placement import LEAVES, Batch, ChunkRange, Event, Operand
from treadle.codegen.collective.program import StepType


@dataclass(slots=True, eq=False)
class UnplacedStep:
    """One step of `rank` on `size` chunks. `reads` and `writes` are its local operands; `recv` and `send` its peers.

    `message` is the step at the other end that sends what this one receives. `time` and `leaves` are when, by the
    schedule, the step is there and what it sends leaves, in ns.
    """

    rank: int
    type: StepType
    size: int
    reads: Operand | None
    writes: Operand | None
    channel: int
    recv: int | None = None
    send: int | None = None
    message: UnplacedStep | None = None
    time: int = 0
    leaves: int = 0

    @property
    def sent(self) -> Operand | None:
        """Where the rank has what it sends, where it has it at all."""
        return self.reads if self.type == "s" or self.writes is None else self.writes


def chunks(operand: Operand | None, size: int) -> list[Operand]:
    """The single chunks of a range."""
    if operand is None:
        return []
    buffer, first = operand
    return [operand] if size == 1 else [(buffer, first + k) for k in range(size)]


def unplaced_steps(
    copies: Sequence[Sequence[ChunkRange]],
    batches: Sequence[Batch],
    events: Iterable[Event],
    instances: int,
    lanes: int = 1,
) -> list[UnplacedStep]:
    """All steps in causal order: local copies, then one send and one receive per run of a batch, everything cut into
    one sub-chunk per instance, which travels on a channel of its own; on one of `lanes`, by its first chunk."""
    steps: list[UnplacedStep] = []
    for rank, runs in enumerate(copies):
        for run in runs:
            for i in range(instances):
                part = run.part(i, instances)
                steps.append(UnplacedStep(rank, "cpy", part.size, part.source, part.target, i * lanes))
    leaving: dict[int, list[UnplacedStep]] = {}
    for event in events:
        batch = batches[event.number]
        lane = batch.moves[0].chunk % lanes
        parts = [(run.part(i, instances), i * lanes + lane) for run in batch.runs for i in range(instances)]
        if event.kind == LEAVES:
            sends = [
                UnplacedStep(batch.src, "s", part.size, part.source, None, way, send=batch.dst) for part, way in parts
            ]
            for send in sends:
                send.time = send.leaves = event.time
            leaving[event.number] = sends
            steps += sends
            continue
        for (part, way), send in zip(parts, leaving.pop(event.number), strict=True):
            kind: StepType = "r" if part.addend is None else "rrc"
            received = UnplacedStep(
                batch.dst, kind, part.size, part.addend, part.target, way, recv=batch.src, message=send
            )
            received.time = event.time
            steps.append(received)
    return steps
