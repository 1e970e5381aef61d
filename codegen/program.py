"""The executable collective program: ranks, threadblocks, steps (TACCL, section 5.6.1; public MSCCL format).

A threadblock sends to at most one rank and receives from at most one; its steps run in order; a step may wait for a
step of another threadblock of the same rank. This is the form that MSCCL XML writes down, that `check_program`
verifies and that the runtime executes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Buffer = Literal["i", "o", "s"]
StepType = Literal["s", "r", "rcs", "rrs", "rrc", "rrcs", "cpy", "re", "nop"]

SENDING = frozenset({"s", "rcs", "rrs", "rrcs"})
RECEIVING = frozenset({"r", "rcs", "rrs", "rrc", "rrcs"})


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction on `count` chunks. `depends` is (threadblock, step) of the same rank or None; `awaited` says
    that some other threadblock waits for this step. `line` is where an XML file says it, 0 for generated programs."""

    type: StepType
    src: tuple[Buffer, int] | None = None
    dst: tuple[Buffer, int] | None = None
    count: int = 1
    depends: tuple[int, int] | None = None
    awaited: bool = False
    line: int = 0


@dataclass(frozen=True, slots=True)
class Threadblock:
    """`send` and `recv` are peer ranks or None; `channel` tells parallel connections of a pair apart."""

    send: int | None
    recv: int | None
    channel: int
    steps: tuple[Step, ...]
    line: int = 0


@dataclass(frozen=True, slots=True)
class RankProgram:
    """Buffer sizes in chunks and the threadblocks of one rank; a threadblock's id is its place in the tuple."""

    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    threadblocks: tuple[Threadblock, ...]
    line: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """`chunks_per_loop` cuts the payload as MSCCL's nchunksperloop does. `max_bytes` 0 means no limit."""

    name: str
    collective: str
    """allgather, reducescatter, allreduce, alltoall, broadcast, reduce or custom."""
    ranks: tuple[RankProgram, ...]
    chunks_per_loop: int
    channels: int
    protocol: str = "Simple"
    inplace: bool = False
    outofplace: bool = True
    min_bytes: int = 0
    max_bytes: int = 0
    root: int | None = None
