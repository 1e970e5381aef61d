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
from treadle.planner.search.clock import Expired, never

Times = NDArray[np.int64]
Decoding = Literal["fold", "tail", "ignore"]


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
    sizes = [gradient.elements for gradient in problem.gradients]
    count = len(sizes)
    ends = np.cumsum(np.array(sizes, np.int64))
    priced: dict[int, tuple[int, int, int, int]] = {}

    def price(elements: int) -> tuple[int, int, int, int]:
        if elements not in priced:
            found = [0, 0, 0]
            for work in works(problem, name, steps, elements):
                found[{"issue": 0, "compress": 0, "decompress": 2}.get(work.word, 1)] += work.ns
            packed = problem.pack.at(elements) if problem.pack is not None and keeps_residual(name) else 0
            priced[elements] = found[0], found[1], found[2], packed
        return priced[elements]

    table = np.zeros((4, count, count), np.int64)
    allowed = np.zeros((count, count), np.bool_)
    for first in range(count):
        if expired():
            raise LimitError("the limit ended the pricing of groups")
        total = ends[first:] - (ends[first] - sizes[first])
        table[:, first, first:] = np.array([price(size) for size in total.tolist()]).T
        allowed[first, first:] = problem.group_bytes is None or DTYPE_BYTES * total <= problem.group_bytes
        allowed[first, first] = True
    encode, send, decode, pack = table
    encode = encode + np.triu(pack, 1)
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
