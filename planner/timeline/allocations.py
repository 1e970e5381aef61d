"""What a plan allocates and frees, event by event, for pictures of memory over time."""

from __future__ import annotations

from typing import NamedTuple


class PlannedBlock(NamedTuple):
    """One allocation. `address` is the first byte if the plan chooses it, otherwise None."""

    name: str
    category: str
    bytes: int
    line: int = 0
    """The place in the plan's program at which it is allocated."""
    inside: str = ""
    """The part of the program in which that happens."""
    address: int | None = None


class MemoryEvent(NamedTuple):
    """At `time_ns` the block of index `block` is allocated, or freed."""

    time_ns: int
    block: int
    freed: bool


class Allocations(NamedTuple):
    """Blocks, and the events in their order. A block without a second event is still allocated at the end."""

    blocks: tuple[PlannedBlock, ...]
    events: tuple[MemoryEvent, ...]

    @property
    def peak_bytes(self) -> int:
        """Most bytes that are allocated at once."""
        live = peak = 0
        for event in self.events:
            live += -self.blocks[event.block].bytes if event.freed else self.blocks[event.block].bytes
            peak = max(peak, live)
        return peak
