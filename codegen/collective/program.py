"""The executable collective program: ranks, threadblocks, steps (TACCL, section 5.6.1; public MSCCL format).

A threadblock sends to at most one rank and receives from at most one; its steps run in order; a step may wait for a
step of another threadblock of the same rank. This is the form that MSCCL XML writes down, that `check_program`
verifies and that the runtime executes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Buffer = Literal["i", "o", "s"]
StepType = Literal["s", "r", "rcs", "rrs", "rrc", "rrcs", "cpy", "re", "ra", "nop"]
"""`ra` is microsoft/msccl's alone: it adds the two residuals of the call, which are no buffer of the program."""

SENDING = frozenset({"s", "rcs", "rrs", "rrcs"})
RECEIVING = frozenset({"r", "rcs", "rrs", "rrc", "rrcs"})
READING = frozenset({"s", "rrs", "rrc", "rrcs", "cpy", "re"})
"""Types that read `src` on their own rank; a receive's `src` only says where the peer had it."""
WRITING = frozenset({"r", "rcs", "rrc", "rrcs", "cpy", "re", "ra"})
"""Types that write `dst` on their own rank (`re` and `ra` read it as well); a send's `dst` only says where the peer
puts it."""


BUFFER_NAMES: dict[Buffer, str] = {"i": "input", "o": "output", "s": "scratch"}


class Place(NamedTuple):
    """Where a step stands: rank, threadblock, position in it."""

    rank: int
    threadblock: int
    step: int


class Connection(NamedTuple):
    """A FIFO from one rank to another; parallel ones differ in `channel`."""

    src: int
    dst: int
    channel: int


@dataclass(frozen=True, slots=True)
class BlockStep:
    """One instruction on `count` chunks. `depends` is (threadblock, step) of the same rank or None; a step is `awaited`
    if another threadblock waits for it. `line` is its line in an XML file, 0 for generated programs."""

    type: StepType
    src: tuple[Buffer, int] | None = None
    dst: tuple[Buffer, int] | None = None
    count: int = 1
    depends: tuple[int, int] | None = None
    awaited: bool = False
    line: int = field(default=0, compare=False)

    @property
    def reads(self) -> tuple[tuple[Buffer, int], ...]:
        """First chunk of every local range of `count` chunks that the step reads."""
        source = (self.src,) if self.src is not None and self.type in READING else ()
        return (*source, self.dst) if self.type in ("re", "ra") and self.dst is not None else source

    @property
    def writes(self) -> tuple[Buffer, int] | None:
        """First chunk of the local range that the step writes."""
        return self.dst if self.type in WRITING else None


@dataclass(frozen=True, slots=True)
class Threadblock:
    """`send` and `recv` are peer ranks or None; parallel connections of a pair differ in `channel`."""

    send: int | None
    recv: int | None
    channel: int
    steps: tuple[BlockStep, ...]
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class RankProgram:
    """Buffer sizes in chunks and the threadblocks of one rank; a threadblock's id is its place in the tuple. `copies`
    are (input chunk, output chunk) pairs done before any step; only TACCL's dialect has them."""

    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    threadblocks: tuple[Threadblock, ...]
    copies: tuple[tuple[int, int], ...] = ()
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class CollectiveProgram:
    """`chunks_per_loop` cuts the payload as MSCCL's nchunksperloop does. `max_bytes` 0 means no limit."""

    name: str
    collective: str
    """allgather, reducescatter, allreduce, alltoall, broadcast, reduce, gather, scatter; or alltoallv, sendrecv, send,
    recv, custom, of which the file alone promises no result."""
    ranks: tuple[RankProgram, ...]
    chunks_per_loop: int
    channels: int
    protocol: str = "Simple"
    inplace: bool = False
    outofplace: bool = True
    min_bytes: int = 0
    max_bytes: int = 0
    root: int | None = None

    def blocks(self) -> Iterator[tuple[int, int, Threadblock]]:
        """Every threadblock with its rank and number, rank by rank."""
        for rank, program in enumerate(self.ranks):
            for number, block in enumerate(program.threadblocks):
                yield rank, number, block

    def steps(self) -> Iterator[tuple[Place, Threadblock, BlockStep]]:
        """Every step with its place, rank by rank, threadblock by threadblock, in order."""
        for rank, number, block in self.blocks():
            for position, step in enumerate(block.steps):
                yield Place(rank, number, position), block, step

    def step(self, place: Place) -> BlockStep:
        return self.ranks[place.rank].threadblocks[place.threadblock].steps[place.step]

    def spot(self, place: Place) -> str:
        """How findings call a step: `gpu 0 tb 1 step 2 (line 12)`."""
        line = f" (line {self.step(place).line})" if self.step(place).line else ""
        return f"gpu {place.rank} tb {place.threadblock} step {place.step}{line}"

    @property
    def part_chunks(self) -> int:
        """Chunks of one rank's part of the payload: the smaller buffer of allgather, reducescatter, gather and scatter,
        one peer's share in alltoall, the whole buffer otherwise.

        For gather and scatter nchunksperloop is either that part (RCCL counts a call's bytes so) or all of them."""
        if self.collective in ("gather", "scatter"):
            sizes = {rank.input_chunks if self.collective == "gather" else rank.output_chunks for rank in self.ranks}
            return min(sizes - {0}, default=self.chunks_per_loop)
        parts = len(self.ranks) if self.collective in ("allgather", "reducescatter", "alltoall") else 1
        return self.chunks_per_loop // parts


def home(collective: str, part_chunks: int, rank: int, buffer: Buffer, index: int) -> tuple[Buffer, int]:
    """The one address of a chunk when the user's input and output are the same memory.

    In place, a rank's allgather or gather input is its part of the output, its reducescatter or scatter output is its
    part of the input, and elsewhere the two buffers are one (MSCCL's rule for when a call counts as in place).
    """
    gathers, scatters = collective in ("allgather", "gather"), collective in ("reducescatter", "scatter")
    if gathers and buffer == "i":
        return "o", rank * part_chunks + index
    if scatters and buffer == "o":
        return "i", rank * part_chunks + index
    if not gathers and not scatters and buffer == "o":
        return "i", index
    return buffer, index
