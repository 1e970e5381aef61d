"""Keys cut into chunks, each of which one core handles on its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from treadle.planner.errors import InputError
from treadle.planner.passes.server.keys import TYPE_BYTES, KeyType
from treadle.planner.passes.server.problem import MOST_CHUNK, MOST_CHUNKS, ServerProblem

Ints = NDArray[np.int64]
C = TypeVar("C", int, Ints)
SUM_BYTES = TYPE_BYTES["float32"]
LINE = 64
"""Chunks begin at multiples of this many bytes in buffers: a line of a cache."""
STANDARD_BYTES = 32 * 1024
"""The chunk that did best in the measurements of the paper, taken where nothing else is known."""
TRIED_BYTES = tuple(1 << power for power in range(12, 23))


class KeySize(Protocol):
    """What a key is cut by."""

    @property
    def elements(self) -> int: ...

    @property
    def dtype(self) -> KeyType: ...


@dataclass(frozen=True)
class KeyChunks:
    """All chunks of a model, in the order of keys; every array is [chunks].

    bytes: as they travel. sums: as float32. The padded ones are what they take in buffers.
    """

    counts: tuple[int, ...]
    """Chunks of each key."""
    bytes: Ints
    sums: Ints

    @property
    def padded_bytes(self) -> Ints:
        return padded(self.bytes)

    @property
    def padded_sums(self) -> Ints:
        return padded(self.sums)


def padded(count: C) -> C:
    """What as many bytes take in a buffer, in which all begins at a multiple of LINE."""
    return -(-count // LINE) * LINE


def chunk_elements(keys: Sequence[KeySize], chunk_bytes: int) -> tuple[Ints, Ints]:
    """Elements of each chunk, `chunk_bytes` of them but for the last one of a key; and how many chunks each key has."""
    most = np.array([chunk_bytes // TYPE_BYTES[key.dtype] for key in keys], dtype=np.int64)
    sizes = np.array([key.elements for key in keys], dtype=np.int64)
    counts = -(-sizes // most)
    found = np.repeat(most, counts)
    found[np.cumsum(counts) - 1] = sizes - (counts - 1) * most
    return found, counts


def count_of(problem: ServerProblem, chunk_bytes: int) -> int:
    """How many chunks the model has."""
    return sum(-(-key.bytes // chunk_bytes) for key in problem.keys)


def chunks_of(problem: ServerProblem, chunk_bytes: int) -> KeyChunks:
    """Every key in pieces of `chunk_bytes`, the last one short. Raises InputError for a size that is no multiple of 64
    or above MOST_CHUNK, and for more than MOST_CHUNKS chunks."""
    if chunk_bytes % LINE or chunk_bytes > MOST_CHUNK:
        raise InputError(f"found {chunk_bytes}, expected a multiple of {LINE} bytes, at most {MOST_CHUNK}",
                         where="--chunk")  # fmt: skip
    if (total := count_of(problem, chunk_bytes)) > MOST_CHUNKS:
        raise InputError(f"found {total} chunks of {chunk_bytes} bytes, expected at most {MOST_CHUNKS}; take larger "
                         "ones", where="--chunk")  # fmt: skip
    widths = np.array([TYPE_BYTES[key.dtype] for key in problem.keys], dtype=np.int64)
    elements, counts = chunk_elements(problem.keys, chunk_bytes)
    return KeyChunks(tuple(counts.tolist()), elements * np.repeat(widths, counts), elements * SUM_BYTES)
