"""Device memory as the peers' allocators divide it. Each allocation names the nodes that freed its memory, on which it
depends, so that a plan is safe for any duration of its copies."""

from __future__ import annotations

import bisect
from collections import deque
from typing import NamedTuple


class Room(NamedTuple):
    """A range of memory; `after` are the nodes that freed it. `take` returns None if nothing fits; `give` gets None as
    node if the memory was never used."""

    address: int
    after: tuple[int, ...]


class Bytes:
    """Counted bytes (allocator `bytes`): those that have been free longest are taken first."""

    def __init__(self, total: int) -> None:
        self.free: deque[tuple[int, int]] = deque([(total, -1)] if total > 0 else [])
        self.left = max(0, total)

    def take(self, count: int) -> Room | None:
        if count > self.left:
            return None
        self.left -= count
        after: set[int] = set()
        while count:
            size, node = self.free.popleft()
            used = min(size, count)
            if used < size:
                self.free.appendleft((size - used, node))
            count -= used
            after.add(node)
        return Room(0, tuple(sorted(after - {-1})))

    def give(self, room: Room, count: int, node: int | None) -> None:
        del room
        self.left += count
        self.free.append((count, -1 if node is None else node))


class Buddy:
    """Blocks of powers of two, each at a multiple of its size; a free block joins its free twin (allocator `offset`).

    A size that is not a power of two is cut into aligned blocks, the largest first.
    """

    def __init__(self, total: int) -> None:
        self.free: dict[int, list[int]] = {}
        """Addresses of free blocks by the exponent of their size, ascending."""
        self.top: dict[int, int] = {}
        """Exponent of the block of the first cut that starts at an address; twins join up to it."""
        address = 0
        for exponent in range(max(0, total).bit_length() - 1, -1, -1):
            if total >> exponent & 1:
                self.free[exponent] = [address]
                self.top[address] = exponent
                address += 1 << exponent
        self.cuts = sorted(self.top)
        self.past = _Past()

    def take(self, count: int) -> Room | None:
        exponent = _exponent(count)
        larger = [e for e, found in self.free.items() if e >= exponent and found]
        if not larger:
            return None
        chosen = min(larger)
        address = self.free[chosen].pop(0)
        while chosen > exponent:
            chosen -= 1
            bisect.insort(self.free.setdefault(chosen, []), address + (1 << chosen))
        return Room(address, self.past.of(address, address + count))

    def give(self, room: Room, count: int, node: int | None) -> None:
        address, exponent = room.address, _exponent(count)
        if node is not None:
            self.past.write(address, address + count, node)
        base = self.cuts[bisect.bisect_right(self.cuts, address) - 1]
        while exponent < self.top[base]:
            twin = base + ((address - base) ^ (1 << exponent))
            blocks = self.free.get(exponent, [])
            at = bisect.bisect_left(blocks, twin)
            if at == len(blocks) or blocks[at] != twin:
                break
            del blocks[at]
            address, exponent = min(address, twin), exponent + 1
        bisect.insort(self.free.setdefault(exponent, []), address)


class _Past:
    """The node that last freed each address."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.spans: list[tuple[int, int, int]] = []

    def of(self, low: int, high: int) -> tuple[int, ...]:
        first, last = self._range(low, high)
        return tuple(sorted({node for _, _, node in self.spans[first:last]}))

    def write(self, low: int, high: int, node: int) -> None:
        first, last = self._range(low, high)
        old = self.spans[first:last]
        new = [(low, high, node)]
        if old and old[0][0] < low:
            new.insert(0, (old[0][0], low, old[0][2]))
        if old and old[-1][1] > high:
            new.append((high, old[-1][1], old[-1][2]))
        self.spans[first:last] = new
        self.starts[first:last] = [span[0] for span in new]

    def _range(self, low: int, high: int) -> tuple[int, int]:
        """The spans that overlap."""
        first = bisect.bisect_right(self.starts, low)
        if first and self.spans[first - 1][1] > low:
            first -= 1
        return first, bisect.bisect_left(self.starts, high)


def _exponent(count: int) -> int:
    """Exponent of the least power of two that holds `count` bytes."""
    return max(0, count - 1).bit_length()
