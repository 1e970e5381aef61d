"""The keys of a reference index in ascending order, for scans."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from treadle.planner.passes.index.operations import Keys

PART_KEYS = 1024


class SortedKeys:
    """Keys in lists of up to twice PART_KEYS, so that one more costs little."""

    def __init__(self, keys: Keys) -> None:
        """keys: ascending."""
        given: list[int] = keys.tolist()
        self._parts = [given[start : start + PART_KEYS] for start in range(0, len(given), PART_KEYS)] or [[]]
        self._firsts = [part[0] if part else 0 for part in self._parts]

    def add(self, key: int) -> None:
        """Add a key that is not there."""
        place = self._place(key)
        part = self._parts[place]
        insort(part, key)
        parts = [part] if len(part) <= 2 * PART_KEYS else [part[:PART_KEYS], part[PART_KEYS:]]
        self._parts[place : place + 1] = parts
        self._firsts[place : place + 1] = [each[0] for each in parts]

    def remove(self, key: int) -> None:
        """Remove a key that is there."""
        place = self._place(key)
        part = self._parts[place]
        del part[bisect_left(part, key)]
        if part:
            self._firsts[place] = part[0]
        elif len(self._parts) > 1:
            del self._parts[place], self._firsts[place]

    def since(self, key: int, count: int) -> list[int]:
        """Up to `count` keys, from `key` on."""
        place = self._place(key)
        found = self._parts[place][bisect_left(self._parts[place], key) :]
        while len(found) < count and (place := place + 1) < len(self._parts):
            found += self._parts[place]
        return found[:count]

    def _place(self, key: int) -> int:
        """The part in which `key` is, or would be."""
        return max(0, bisect_right(self._firsts, key) - 1)
