"""The dependences of two kernels that run at the same time, as tables of C++ (templates/fusion/treadle_overlap.h).

A producer makes units and a consumer takes units; where they meet in the tensor between them, one waits for the other.
Units of a collective are (iteration, chunk), numbered iteration by iteration; units of a product are its tiles where it
produces and rows of tiles where it consumes. Orders follow from the executed program, never from the number of a rank
(CoCoNet, section 5.3).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from treadle.codegen.collective.cuda.tables import RECEIVE, SEND
from treadle.codegen.fusion.typed import TypedProgram, TypedStep
from treadle.codegen.templates import template
from treadle.planner.passes.fusion.gemm_tiles import Chunk, Rectangle

COUNTER_BYTES = 8


@dataclass(frozen=True)
class UnitLink:
    """By rank of a group, the units of the consumer that each unit of the producer is part of: `feeds[rank][unit]`.
    `at` is where the counters lie in a rank's arena. Identical ranks may be given once."""

    name: str
    at: int
    feeds: tuple[tuple[tuple[int, ...], ...], ...]
    units: int
    """Units of the consumer, the same at every rank."""

    @property
    def need(self) -> tuple[tuple[int, ...], ...]:
        """By rank and unit of the consumer: how many units of the producer it is made of."""
        return tuple(_counted(feeds, self.units) for feeds in self.feeds)

    @property
    def arena_bytes(self) -> int:
        return self.units * COUNTER_BYTES

    def text(self) -> str:
        """A C++ type of this name."""
        starts: list[int] = []
        flat: list[int] = []
        rows = []
        for feeds in self.feeds:
            rows.append(len(starts))
            starts += [len(flat) + start for start in accumulate(map(len, feeds), initial=0)]
            flat += [unit for fed in feeds for unit in fed]
        return template("fusion/link.cu.j2").render(
            link=self, rows=rows, starts=starts, flat=flat or [0], need=[each for row in self.need for each in row]
        )


@dataclass(frozen=True)
class TileOrder:
    """By rank of a group, the order in which it makes its units; the counter of turns lies at `at` of its arena."""

    name: str
    at: int
    units: tuple[tuple[int, ...], ...]

    arena_bytes = COUNTER_BYTES

    def text(self) -> str:
        """A C++ type of this name."""
        first = list(accumulate(map(len, self.units), initial=0))
        return template("fusion/order.cu.j2").render(
            order=self, first=first, flat=[unit for units in self.units for unit in units] or [0]
        )


Steps = tuple[tuple[int, ...], ...]
"""Chunks in the order in which a rank comes to them, those of one step together."""


def steps_of_inputs(typed: TypedProgram, ranks: int) -> tuple[Steps, ...]:
    """By rank of a group of `ranks`: the chunks of its input in the order in which the program first reads them.

    The time of a step counts one unit for each, after its threadblock, the steps it depends on and its message.
    """
    return _steps(typed, ranks, inputs_of)


def steps_of_outputs(typed: TypedProgram, ranks: int) -> tuple[Steps, ...]:
    """By rank of a group of `ranks`: the chunks of its output in the order in which the program first stores them."""
    return _steps(typed, ranks, outputs_of)


def inputs_of(move: TypedStep) -> range:
    """Chunks of the collective's input that a move reads."""
    reads = any(operand is not None and operand[0] == "input" for operand in (move.source, move.addend))
    return range(move.chunk, move.chunk + (move.count if reads else 0))


def outputs_of(move: TypedStep) -> range:
    """Chunks of the collective's output that a move stores."""
    stores = move.target is not None and move.target[0] == "output"
    return range(move.chunk, move.chunk + (move.count if stores else 0))


def _steps(typed: TypedProgram, ranks: int, chunks_of: Callable[[TypedStep], range]) -> tuple[Steps, ...]:
    """Ranks of all groups do the same, or, where one group sends to the next, one does what the other does not."""
    times = _times(typed)
    found = []
    for place in range(ranks):
        first: dict[int, int] = {}
        for lane in (lane for lanes in typed.lanes[place::ranks] for lane in lanes):
            for move in lane.steps:
                for chunk in chunks_of(move):
                    first[chunk] = min(times[move], first.get(chunk, times[move]))
        steps: dict[int, list[int]] = defaultdict(list)
        for chunk, time in sorted(first.items()):
            steps[time].append(chunk)
        found.append(tuple(tuple(steps[time]) for time in sorted(steps)))
    return tuple(found)


def met(producers: Sequence[Chunk], consumers: Sequence[Chunk]) -> tuple[tuple[int, ...], ...]:
    """For each unit of the producer the units of the consumer that share an element with it; both are rectangles."""
    return tuple(
        tuple(number for number, taken in enumerate(consumers) if any(_meet(a, b) for a in made for b in taken))
        for made in producers
    )


def _meet(a: Rectangle, b: Rectangle) -> bool:
    down = a.row < b.row + b.rows and b.row < a.row + a.rows
    return down and a.column < b.column + b.columns and b.column < a.column + a.columns


def _counted(feeds: Sequence[Sequence[int]], units: int) -> tuple[int, ...]:
    need = [0] * units
    for fed in feeds:
        for unit in fed:
            need[unit] += 1
    return tuple(need)


def _times(typed: TypedProgram) -> dict[TypedStep, int]:
    """When each move is done, if each takes one unit of time."""
    times: dict[TypedStep, int] = {}
    flight: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)
    waiting = [(rank, lane, 0) for rank, lanes in enumerate(typed.lanes) for lane in lanes]
    while waiting:
        left = []
        for rank, lane, begin in waiting:
            position = begin
            while position < len(lane.steps):
                move = lane.steps[position]
                key = (lane.recv, rank, lane.channel)
                if any(before not in times for before in move.after) or (move.flow & RECEIVE and not flight[key]):  # type: ignore[index]
                    break
                past = [times[before] for before in move.after]
                past += [times[lane.steps[position - 1]]] if position else []
                past += [flight[key].popleft()] if move.flow & RECEIVE else []  # type: ignore[index]
                times[move] = 1 + max(past, default=0)
                if move.flow & SEND:
                    flight[rank, lane.send, lane.channel].append(times[move])  # type: ignore[index]
                position += 1
            if position < len(lane.steps):
                left.append((rank, lane, position))
        assert len(left) < len(waiting) or any(a[2] != b[2] for a, b in zip(left, waiting, strict=True))
        waiting = left
    return times
