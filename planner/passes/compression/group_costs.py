"""What groups of consecutive gradients cost in the model of Cupcake: one stream that computes, one channel that sends.

A group is encoded on the stream after the backward pass of its last gradient, then sent. Decoding all payloads is
charged with the encoding (`fold`), after all other work of the stream (`tail`), or not at all (`ignore`, as in the
paper).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from treadle.planner.errors import LimitError
from treadle.planner.machine.compressors import keeps_residual
from treadle.planner.passes.compression.candidates import inter_allgather, places_of
from treadle.planner.passes.compression.decided import plain_option
from treadle.planner.passes.compression.options import Option
from treadle.planner.passes.compression.payload import works
from treadle.planner.passes.compression.problem import DTYPE_BYTES, CompressionProblem
from treadle.planner.passes.compression.sizes import LARGEST
from treadle.planner.search.clock import Expired, never

Times = NDArray[np.int64]
Decoding = Literal["fold", "tail", "ignore"]
POLLED = 1 << 14
"""Sizes that are priced between two looks at the clock."""


@dataclass(frozen=True)
class GroupCosts:
    """One option for all groups. Tables are in ns; entry [i, j] is for gradients i to j, j >= i.

    backward: [N], of each gradient. allowed: [N, N], groups within the limit of bytes.
    """

    backward: Times
    encode: Times
    send: Times
    decode: Times
    allowed: NDArray[np.bool_]
    compressor: str | None = None
    steps: Option = ()

    def with_decoding(self, decoding: Decoding) -> GroupCosts:
        """The same with the decoding where it is charged."""
        if decoding == "tail":
            return self
        folded = self.encode + self.decode if decoding == "fold" else self.encode
        return replace(self, encode=folded, decode=np.zeros_like(self.decode))


@dataclass(frozen=True)
class Grouping:
    """A partition: the last gradient of each group, and the number of the option that it has. `ns` is from the start of
    the backward pass in the model of Cupcake. cut: the clock ended the search for it."""

    ns: int
    ends: tuple[int, ...]
    chosen: tuple[int, ...]
    cut: bool = False

    @property
    def key(self) -> tuple[int, int, tuple[int, ...]]:
        """Least first: of equal times the fewest groups, then the smaller ends."""
        return self.ns, len(self.ends), self.ends


def tables(
    backward: Sequence[int],
    sizes: Sequence[int],
    encode: Callable[[int], int],
    send: Callable[[int], int],
    decode: Callable[[int], int] = lambda size: 0,
) -> GroupCosts:
    """Costs that are functions of the size of a group."""
    total = _sums(sizes)
    every = np.triu(np.ones_like(total, dtype=np.bool_))
    encoded, sent, decoded = (_over_sizes(total, cost) for cost in (encode, send, decode))
    return GroupCosts(np.array(backward, np.int64), encoded, sent, decoded, every)


def costs_of(problem: CompressionProblem, name: str | None, expired: Expired = never) -> GroupCosts:
    """Costs of the option that Cupcake has for compressor `name`, None for the plain option: an allgather of payloads;
    between nodes of several ranks of those of one shard each, after a dense reduce-scatter inside the node. Raises
    LimitError once it is `expired`, for there may be millions of ranges."""
    steps = plain_option(problem) if name is None else inter_allgather(problem, places_of(problem, name)[0])
    total = _sums([gradient.elements for gradient in problem.gradients])
    several = np.triu(np.ones_like(total, dtype=np.bool_), 1)
    sizes, place = np.unique(total, return_inverse=True)
    if 2 * DTYPE_BYTES * int(sizes[-1]) * problem.ranks > LARGEST:
        sizes = sizes.astype(object)  # Python's integers have no limit
    found = np.zeros((3, len(sizes)), np.int64)
    for begin in range(0, len(sizes), POLLED):
        if begin and expired():
            raise LimitError("the limit ended the pricing of groups")
        some = slice(begin, begin + POLLED)
        for work in works(problem, name, steps, sizes[some]):
            row = {"issue": 0, "compress": 0, "decompress": 2}.get(work.word, 1)
            found[row, some] = found[row, some] + work.ns
    encode, send, decode = (priced[place.reshape(total.shape)] for priced in found * (sizes > 0))
    if problem.pack is not None and keeps_residual(name):
        encode = encode + np.where(several, _over_sizes(total, problem.pack.at), 0)
    allowed = np.triu(np.ones_like(several))
    if problem.group_bytes is not None:
        allowed &= ~several | (DTYPE_BYTES * total <= problem.group_bytes)
    backward = np.array([gradient.backward_ns for gradient in problem.gradients], np.int64)
    return GroupCosts(backward, encode, send, decode, allowed, name, steps)


def grouping_of(alternatives: Sequence[GroupCosts], ends: Sequence[int], chosen: Sequence[int]) -> Grouping:
    """The partition with its time: a channel sends groups in their order, each once it is encoded."""
    computed = sent = decoded = tail = 0
    first = 0
    for end, number in zip(ends, chosen, strict=True):
        costs = alternatives[number]
        computed += int(costs.backward[first : end + 1].sum() + costs.encode[first, end])
        sent = max(computed, sent) + int(costs.send[first, end])
        decoded = max(decoded, sent) + int(costs.decode[first, end])
        tail += int(costs.decode[first, end])
        first = end + 1
    return Grouping(max(computed + tail, decoded), tuple(ends), tuple(chosen))


def _sums(sizes: Sequence[int]) -> Times:
    """[i, j]: the size of gradients i to j together, 0 below the diagonal."""
    ends = np.cumsum(np.array(sizes, np.int64))
    starts = ends - np.array(sizes, np.int64)
    total: Times = np.maximum(ends[None, :] - starts[:, None], 0)
    return total


def _over_sizes(total: Times, cost: Callable[[int], int]) -> Times:
    """The cost of each size; equal sizes, which repeated layers have, are priced once."""
    sizes, place = np.unique(total, return_inverse=True)
    found = np.array([cost(size) if size else 0 for size in sizes.tolist()], np.int64)
    return found[place.reshape(total.shape)]
