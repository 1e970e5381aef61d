"""Kernels of sparse gradients: parts, sums, bitmaps, and what goes from dense to sparse and back."""

from treadle.kernels.sparse.owned import Owned, OwnedPart, owned, ranges
from treadle.kernels.sparse.partition import Partitioned, PartitionMemory
from treadle.kernels.sparse.sums import aggregate, coalesce, decode, gather, write

__all__ = [
    "Owned",
    "OwnedPart",
    "PartitionMemory",
    "Partitioned",
    "aggregate",
    "coalesce",
    "decode",
    "gather",
    "owned",
    "ranges",
    "write",
]
