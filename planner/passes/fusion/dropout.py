"""Which elements Dropout keeps: a function of only seed, step, key and the element's global index.

So every schedule drops the same elements on any number of ranks, and a backward pass can recompute the mask. The words
of Philox4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011) are

    key      k0 = seed, k1 = crc32(key) (+ the rank in its group for Local operands, which differ anyway)
    counter  c0, c1 = low and high half of index // 4, c2, c3 = low and high half of step
    lane     index % 4

all modulo 2^32. An element is dropped when its word is below floor(p 2^32); the others are multiplied with
1 / (1 - p), rounded to f32 (f64 for f64 tensors).
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from treadle.planner.errors import InputError

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(counter: NDArray[np.uint32], key: tuple[int, int]) -> NDArray[np.uint32]:
    """Philox4x32-10 of counters [.., 4]: as many words of random bits."""
    c0, c1, c2, c3 = (counter[..., lane].astype(np.uint64) for lane in range(4))
    for number in range(ROUNDS):
        k0, k1 = (np.uint64((word + number * weyl) & 0xFFFFFFFF) for word, weyl in zip(key, WEYL, strict=True))
        first, second = c0 * np.uint64(MULTIPLIERS[0]), c2 * np.uint64(MULTIPLIERS[1])
        c0, c1, c2, c3 = (second >> _HALF) ^ c1 ^ k0, second & _LOW, (first >> _HALF) ^ c3 ^ k1, first & _LOW
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def op_key(key: str) -> int:
    """The second word of Philox's key for a Dropout's `key`."""
    return zlib.crc32(key.encode())


def threshold(p: float) -> int:
    """Words below it drop their element."""
    return int(p * 2**32)


def scale(p: float) -> float:
    """What survivors are multiplied with, before it is rounded."""
    return 1 / (1 - p)


def kept(indices: NDArray[np.int64], p: float, key: str, *, seed: int, step: int, rank: int = 0) -> NDArray[np.bool_]:
    """Whether the elements at these global, row-major indices survive. `rank` is that in its group, 0 unless Local.

    Raises InputError for a seed of more than 32 bits or a step of more than 64.
    """
    if not 0 <= seed < 2**32 or not 0 <= step < 2**64:
        raise InputError(f"found seed {seed} and step {step}, expected 0 <= seed < 2^32 and 0 <= step < 2^64")
    blocks, place = np.unique(np.asarray(indices, np.int64) // 4, return_inverse=True)
    low = blocks.astype(np.uint64)
    counter = np.empty((blocks.size, 4), np.uint32)
    counter[:, 0], counter[:, 1] = low & _LOW, low >> _HALF
    counter[:, 2], counter[:, 3] = step & 0xFFFFFFFF, step >> 32
    words = philox(counter, (seed, (op_key(key) + rank) & 0xFFFFFFFF))
    lanes = np.asarray(indices, np.int64) % 4
    return words[place.reshape(lanes.shape), lanes] >= np.uint32(threshold(p))
