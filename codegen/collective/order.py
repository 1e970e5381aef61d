"""The order in which a program can run: which send meets which receive, and one sequence that all ranks may follow.

Execution on bounded FIFOs is confluent: the steps that can ever run do not depend on the order in which enabled ones
are taken. So one run finds every deadlock, and its sequence, cut per rank, is a schedule that needs no polling:
a rank that follows its part and blocks on each receive never deadlocks.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Literal

from treadle.codegen.collective.program import (
    RECEIVING,
    SENDING,
    BlockStep,
    CollectiveProgram,
    Connection,
    Place,
    Threadblock,
)

Obstacle = Literal["dependence", "message", "room"]
"""A step of another threadblock, a message that has not come, or a full connection."""


@dataclass(slots=True)
class Ends:
    """The sending and the receiving steps of one connection, in order."""

    sends: list[Place] = field(default_factory=list)
    receives: list[Place] = field(default_factory=list)


def outgoing(place: Place, block: Threadblock, step: BlockStep) -> Connection | None:
    """The connection this step sends on."""
    return fifos_of(place.rank, block)[1] if step.type in SENDING else None


def incoming(place: Place, block: Threadblock, step: BlockStep) -> Connection | None:
    """The connection this step receives from."""
    return fifos_of(place.rank, block)[0] if step.type in RECEIVING else None


def fifos_of(rank: int, block: Threadblock) -> tuple[Connection | None, Connection | None]:
    """The connections that a threadblock of `rank` receives from and sends on."""
    received = None if block.recv is None else Connection(block.recv, rank, block.channel)
    sent = None if block.send is None else Connection(rank, block.send, block.channel)
    return received, sent


def connections(program: CollectiveProgram) -> dict[Connection, Ends]:
    """Every connection that carries a message, sorted, with the steps at both ends. The k-th send meets the k-th
    receive."""
    found: dict[Connection, Ends] = defaultdict(Ends)
    for rank, index, block in program.blocks():
        received, sent = fifos_of(rank, block)
        for position, step in enumerate(block.steps):
            if sent is not None and step.type in SENDING:
                found[sent].sends.append(Place(rank, index, position))
            if received is not None and step.type in RECEIVING:
                found[received].receives.append(Place(rank, index, position))
    return {connection: found[connection] for connection in sorted(found)}


@dataclass(frozen=True, slots=True)
class ExecutionOrder:
    """`sequence` is every step that can run, in one possible order; `stuck` is the next step of each threadblock that
    could not go on, empty when the program ends. `obstacles` says what each of those waits for."""

    sequence: tuple[Place, ...]
    stuck: tuple[Place, ...]
    obstacles: tuple[Obstacle, ...] = ()


@dataclass(slots=True)
class _Block:
    """A threadblock as `run` sees it: of each step the dependence, the connections, the messages; and how far it is."""

    steps: list[tuple[tuple[int, int, int] | None, Connection | None, Connection | None, int]]
    done: int = 0
    left: int = 0


def run(program: CollectiveProgram, fifo_depth: int, piece: int | None = None) -> ExecutionOrder:
    """Run `program` with `fifo_depth` slots per connection; a fused receive-and-send is one atomic step.

    A step is one message, or with `piece` several of up to `piece` chunks each, which a fused step passes on one after
    the other. Threadblocks that can continue take turns, first come first served, one message at a time: the sequence
    stays close to parallel execution.
    """
    blocks = {(rank, index): _Block(_needs(rank, block, piece)) for rank, index, block in program.blocks()}
    filled: dict[Connection, int] = defaultdict(int)
    waiting: dict[object, list[tuple[int, int]]] = defaultdict(list)
    sequence: list[Place] = []
    queue = deque(key for key, block in blocks.items() if block.steps)
    obstacles: dict[tuple[int, int], Obstacle] = {}
    while queue:
        key = queue.popleft()
        block = blocks[key]
        depends, received, sent, messages = block.steps[block.done]
        if depends is not None and block.left == 0 and blocks[depends[:2]].done <= depends[2]:
            obstacles[key] = "dependence"
            waiting["passed", depends[:2]].append(key)
            continue
        if received is not None and filled[received] == 0:
            obstacles[key] = "message"
            waiting["filled", received].append(key)
            continue
        if sent is not None and filled[sent] >= fifo_depth:
            obstacles[key] = "room"
            waiting["drained", sent].append(key)
            continue
        if received is not None:
            filled[received] -= 1
            queue.extend(waiting.pop(("drained", received), ()))
        if sent is not None:
            filled[sent] += 1
            queue.extend(waiting.pop(("filled", sent), ()))
        block.left = (block.left or messages) - 1
        if block.left == 0:
            sequence.append(Place(*key, block.done))
            block.done += 1
            queue.extend(waiting.pop(("passed", key), ()))
        if block.done < len(block.steps):
            queue.append(key)
    stuck = {key: Place(*key, block.done) for key, block in blocks.items() if block.done < len(block.steps)}
    return ExecutionOrder(tuple(sequence), tuple(stuck.values()), tuple(obstacles[key] for key in stuck))


def _needs(
    rank: int, block: Threadblock, piece: int | None
) -> list[tuple[tuple[int, int, int] | None, Connection | None, Connection | None, int]]:
    """The needs of each step: rank, threadblock and position it waits for, its two connections, its messages."""
    into, out = fifos_of(rank, block)
    needs = []
    for step in block.steps:
        received = into if step.type in RECEIVING else None
        sent = out if step.type in SENDING else None
        cut = piece is not None and (received is not None or sent is not None)
        messages = -(-step.count // piece) if cut and piece is not None else 1
        depends = None if step.depends is None else (rank, *step.depends)
        needs.append((depends, received, sent, messages))
    return needs
