"""Hierarchical hashing in plain Python, and what two threads can do to one slot, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

Hash = Callable[[int], int]


class Overflow(Exception):
    """A part has no serial word left."""


def hierarchical(
    units: Sequence[int], parts: int, slots: int, serial: int, part_of: Hash, slot_of: Sequence[Hash]
) -> list[list[int]]:
    """The memory of each part after algorithm 3.2 of Zen, for units above 0 that come one after the other."""
    memory = [[0] * (slots + serial) for _ in range(parts)]
    taken = [slots] * parts
    for unit in units:
        part = part_of(unit)
        free = next((h(unit) for h in slot_of if memory[part][h(unit)] == 0), None)
        if free is None:
            free, taken[part] = taken[part], taken[part] + 1
            if free == slots + serial:
                raise Overflow(part)
        memory[part][free] = unit
    return memory


class Slot:
    """A slot of memory that two threads want, each for a unit of its own."""

    def __init__(self) -> None:
        self.word = 0

    def test_then_write(self, unit: int) -> Iterator[bool]:
        """As published: read the slot, write it if it was free, read it back. A step ends at each `yield`; the last
        one says whether the unit is believed to be in the slot."""
        was_free = self.word == 0
        yield False
        if was_free:
            self.word = unit
        yield False
        yield was_free and self.word == unit

    def compare_and_swap(self, unit: int) -> Iterator[bool]:
        """Read and write in a single step."""
        was_free = self.word == 0
        if was_free:
            self.word = unit
        yield was_free


def interleavings(insert: Callable[[Slot, int], Iterator[bool]], steps: int) -> Iterator[bool]:
    """For each interleaving of two threads of `steps` steps: whether a unit is lost, because a thread believes that
    its unit is in the slot where the other one is."""
    for first in combinations(range(2 * steps), steps):
        slot = Slot()
        threads = {unit: insert(slot, unit) for unit in (1, 2)}
        believed = {1: False, 2: False}
        for step in range(2 * steps):
            unit = 1 if step in first else 2
            believed[unit] = next(threads[unit])
        yield any(believes and slot.word != unit for unit, believes in believed.items())


def in_lockstep(units: Sequence[int], slots: int, slot_of: Sequence[Hash], swaps: bool) -> list[int]:
    """The units in memory after all threads, one for each unit, have tried each function at the same time: each reads
    its slot before any writes. With `swaps` the first one to write gets a slot, and the others know; without it the
    last one does, and all believe that they did."""
    memory: dict[int, int] = {}
    pending = list(units)
    for h in slot_of:
        free = [unit for unit in pending if h(unit) not in memory]
        for unit in free:
            if not swaps or h(unit) not in memory:
                memory[h(unit)] = unit
        done = set(memory.values()) if swaps else set(free)
        pending = [unit for unit in pending if unit not in done]
    return sorted([*memory.values(), *pending])
