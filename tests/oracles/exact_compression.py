"""Compression of a few gradients over one link, tick by tick, and the best of all choices.

A choice is a letter for each gradient: n sends it as it is, g compresses it on the device, c on the host. All lengths
are 1 tick or more. Shares no code with the planner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product


@dataclass(frozen=True)
class OneLink:
    """Ticks of each gradient: in the backward pass, on the link as it is and compressed; and of an encoding."""

    backward: Sequence[int]
    raw: Sequence[int]
    compressed: Sequence[int]
    device: int
    host: int

    def time(self, choice: str) -> int:
        """Ticks until all gradients are sent. A resource takes what was ready first, of that an encoding before the
        backward pass and a lower gradient before a higher one."""
        waiting: dict[str, list[tuple[int, int, int]]] = {"device": [(0, 1, 0)], "host": [], "link": []}
        running: dict[str, tuple[int, int, int]] = {}
        now = 0
        while True:
            for resource, (end, kind, gradient) in list(running.items()):
                if end == now:
                    del running[resource]
                    if resource == "link":
                        continue
                    if kind == 0:
                        waiting["link"].append((now, 0, gradient))
                        continue
                    place = {"n": "link", "g": "device", "c": "host"}[choice[gradient]]
                    waiting[place].append((now, 0, gradient))
                    if gradient + 1 < len(choice):
                        waiting["device"].append((now, 1, gradient + 1))
            for resource, queue in waiting.items():
                if resource not in running and queue:
                    _, kind, gradient = entry = min(queue)
                    queue.remove(entry)
                    running[resource] = now + self._ticks(resource, kind, choice[gradient], gradient), kind, gradient
            if not running:
                return now
            now += 1

    def _ticks(self, resource: str, kind: int, letter: str, gradient: int) -> int:
        if resource == "link":
            return (self.raw if letter == "n" else self.compressed)[gradient]
        if kind == 1:
            return self.backward[gradient]
        return self.device if resource == "device" else self.host

    def choices(self, letters: str) -> Iterator[str]:
        """All choices of these letters."""
        return map("".join, product(letters, repeat=len(self.backward)))

    def best(self, letters: str) -> int:
        """The least time of all of them."""
        return min(map(self.time, self.choices(letters)))
