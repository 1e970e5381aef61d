"""The order in which a program can run: which send meets which receive, and one sequence that all ranks may follow.

Execution on bounded FIFOs is confluent: the steps that can ever run do not depend on the order in which enabled ones
are taken. So one run finds every deadlock, and its sequence, cut per rank, is a schedule that needs no polling:
a rank that follows its part and blocks on each receive never deadlocks.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

from codegen.program import RECEIVING, SENDING, Connection, Place, Program, Step, Threadblock


@dataclass(slots=True)
class Ends:
    """The sending and the receiving steps of one connection, in order."""

    sends: list[Place] = field(default_factory=list)
    receives: list[Place] = field(default_factory=list)


def outgoing(place: Place, block: Threadblock, step: Step) -> Connection | None:
    """The connection this step sends on."""
    return (
        Connection(place.rank, block.send, block.channel) if step.type in SENDING and block.send is not None else None
    )


def incoming(place: Place, block: Threadblock, step: Step) -> Connection | None:
    """The connection this step receives from."""
    return (
        Connection(block.recv, place.rank, block.channel) if step.type in RECEIVING and block.recv is not None else None
    )


def connections(program: Program) -> dict[Connection, Ends]:
    """Every connection that carries a message, sorted, with the steps at both ends. The k-th send meets the k-th
    receive."""
    found: dict[Connection, Ends] = defaultdict(Ends)
    for place, block, step in program.steps():
        if (sent := outgoing(place, block, step)) is not None:
            found[sent].sends.append(place)
        if (received := incoming(place, block, step)) is not None:
            found[received].receives.append(place)
    return {connection: found[connection] for connection in sorted(found)}


@dataclass(frozen=True, slots=True)
class Run:
    """`sequence` is every step that can run, in one possible order; `stuck` is the next step of each threadblock that
    could not go on, empty when the program ends."""

    sequence: tuple[Place, ...]
    stuck: tuple[Place, ...]


def run(program: Program, fifo_depth: int) -> Run:
    """Run `program` with `fifo_depth` slots per connection; a fused receive-and-send is one atomic step.

    Threadblocks that become able to go on take turns, first come first served, one step at a time: so the sequence
    stays close to what parallel threadblocks would do.
    """
    blocks = {
        (rank, index): block
        for rank, ranked in enumerate(program.ranks)
        for index, block in enumerate(ranked.threadblocks)
    }
    done = dict.fromkeys(blocks, 0)
    filled: dict[Connection, int] = defaultdict(int)
    waiting: dict[object, list[tuple[int, int]]] = defaultdict(list)
    sequence: list[Place] = []
    queue = deque(key for key, block in blocks.items() if block.steps)

    def obstacle(key: tuple[int, int]) -> object | None:
        """What keeps the next step of a threadblock from running: an event another one will announce."""
        block, place = blocks[key], Place(*key, done[key])
        step = block.steps[done[key]]
        if step.depends is not None:
            awaited = (key[0], step.depends[0])
            if done.get(awaited, 0) <= step.depends[1]:
                return ("passed", awaited)
        received, sent = incoming(place, block, step), outgoing(place, block, step)
        if received is not None and filled[received] == 0:
            return ("filled", received)
        if sent is not None and filled[sent] >= fifo_depth:
            return ("drained", sent)
        return None

    while queue:
        key = queue.popleft()
        blocked = obstacle(key)
        if blocked is not None:
            waiting[blocked].append(key)
            continue
        block, place = blocks[key], Place(*key, done[key])
        step = block.steps[done[key]]
        sequence.append(place)
        done[key] += 1
        queue.extend(waiting.pop(("passed", key), ()))
        if (received := incoming(place, block, step)) is not None:
            filled[received] -= 1
            queue.extend(waiting.pop(("drained", received), ()))
        if (sent := outgoing(place, block, step)) is not None:
            filled[sent] += 1
            queue.extend(waiting.pop(("filled", sent), ()))
        if done[key] < len(block.steps):
            queue.append(key)
    stuck = tuple(Place(*key, done[key]) for key, block in blocks.items() if done[key] < len(block.steps))
    return Run(tuple(sequence), stuck)
