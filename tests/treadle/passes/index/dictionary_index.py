"""A dictionary with the methods of a learned index, and mistakes that it can be told to make."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from treadle.planner.passes.index.operations import Keys


class DictionaryIndex:
    """`wrong_key`: answers about it are wrong, in all methods. `finding` is what `broken` says."""

    def __init__(self, wrong_key: int | None = None, finding: str | None = None) -> None:
        self.held: dict[int, int] = {}
        self.wrong_key, self.finding = wrong_key, finding

    def __enter__(self) -> DictionaryIndex:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def load(self, keys: Keys, payloads: Keys) -> None:
        self.held = dict(zip(keys.tolist(), payloads.tolist(), strict=True))

    def lookup(self, keys: Keys) -> tuple[Keys, NDArray[np.bool_]]:
        given = keys.tolist()
        values = [self.held.get(key, 0) + (key == self.wrong_key) for key in given]
        return np.array(values, np.uint64), np.array([key in self.held for key in given])

    def insert(self, keys: Keys, payloads: Keys) -> NDArray[np.bool_]:
        new = []
        for key, payload in zip(keys.tolist(), payloads.tolist(), strict=True):
            new.append((key not in self.held) != (key == self.wrong_key))
            self.held.setdefault(key, payload)
        return np.array(new)

    def erase(self, keys: Keys) -> NDArray[np.bool_]:
        return np.array([self.held.pop(key, None) is not None for key in keys.tolist()])

    def scan(self, start: int, count: int) -> tuple[Keys, Keys]:
        found = sorted(key for key in self.held if key >= start and key != self.wrong_key)[:count]
        return np.array(found, np.uint64), np.array([self.held[key] for key in found], np.uint64)

    def items(self) -> Iterator[tuple[int, int]]:
        yield from sorted(self.held.items())

    def broken(self) -> str | None:
        return self.finding

    def __len__(self) -> int:
        return len(self.held)
