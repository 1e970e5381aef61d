"""The hash functions of sparse gradients: MurmurHash3 (x86, 32 bits) of one word, over NumPy arrays.

Part `h0(unit)` depends on the unit and the seed alone, so all participants send a unit to the same owner.
"""

from __future__ import annotations

from math import ceil, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

DEFAULT_SEEDS = (0x3C6EF372, 0x78DDE6E5, 0xB54CDA58, 0xF1BBCDCB)
"""Those of h0 and of three functions within a part. Any four numbers do."""
Words = NDArray[np.uint32]


def murmur3(words: NDArray[Any], seed: int) -> Words:
    """MurmurHash3_x86_32 of each word [N] as four bytes, little endian."""
    with np.errstate(over="ignore"):
        k = words.astype(np.uint32) * np.uint32(0xCC9E2D51)
        k = ((k << np.uint32(15)) | (k >> np.uint32(17))) * np.uint32(0x1B873593)
        h = np.uint32(seed) ^ k
        h = ((h << np.uint32(13)) | (h >> np.uint32(19))) * np.uint32(5) + np.uint32(0xE6546B64)
        h = h ^ np.uint32(4)
        h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    found: Words = h ^ (h >> np.uint32(16))
    return found


def ranged(words: NDArray[Any], seed: int, size: int) -> NDArray[np.int64]:
    """Hashes of words [N] in [0, size): the upper half of hash times size."""
    return ((murmur3(words, seed).astype(np.uint64) * np.uint64(size)) >> np.uint64(32)).astype(np.int64)


def fullest_hashed(units: int, parts: int) -> int:
    """Units in the fullest of `parts` hashed parts, as expected for many of any `units` (Zen, theorem 3.2)."""
    mean = units / parts
    return min(units, ceil(mean + sqrt(2 * mean * log(parts))))
