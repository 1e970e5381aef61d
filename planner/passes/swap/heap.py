"""Binary heaps of integers in segments of one array, least first, for compiled loops."""

from __future__ import annotations

from treadle.planner.passes.swap.arrays import Ints
from treadle.planner.search.compiled import compiled


@compiled
def push(heap: Ints, base: int, size: int, key: int) -> None:
    """Add `key` to the heap of `size` entries that starts at `base`."""
    at = size
    while at > 0:
        above = (at - 1) >> 1
        if heap[base + above] <= key:
            break
        heap[base + at] = heap[base + above]
        at = above
    heap[base + at] = key


@compiled
def pop(heap: Ints, base: int, size: int) -> int:
    """Remove and return the least of `size` > 0 entries; `size` - 1 are left."""
    least = heap[base]
    size -= 1
    last = heap[base + size]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size and heap[base + below + 1] < heap[base + below]:
            below += 1
        if heap[base + below] >= last:
            break
        heap[base + at] = heap[base + below]
        at = below
    heap[base + at] = last
    return least  # type: ignore[no-any-return]


@compiled
def rank(reach: int, valid: bool, last: int, t: int, n: int, tensors: int) -> int:
    """Sort key of victims: the furthest next use (2 n at most) first, then one with a valid copy on the host, then the
    least recently used, then the lowest number."""
    return (((2 * n - reach) * 2 + (0 if valid else 1)) * (n + 1) + last + 1) * tensors + t
