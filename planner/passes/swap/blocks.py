"""The device as a list of blocks in the order of their addresses, for the compiled scan of
treadle.planner.passes.swap.span_scan.

A block is a tensor, or free; a free one may name a node that has to end before its bytes can be used. Adjacent free
blocks are a hole. A tensor takes the smallest hole that holds it; otherwise the window of neighbours that is cheapest
to clear.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treadle.planner.passes.swap.arrays import COMPUTE, Flags, Ints
from treadle.planner.search.compiled import compiled


class Blocks(NamedTuple):
    """Per block its address, its bytes, its tensor (-1: free), the node it waits for (-1: none) and its neighbours.
    Block 0 is the lower end. `spare`: a stack of unused numbers, `spare[0]` how many they are."""

    at: Ints
    bytes: Ints
    tensor: Ints
    node: Ints
    above: Ints
    below: Ints
    spare: Ints


@compiled
def empty(most: int, room: int) -> Blocks:
    """`room` free bytes, for up to `most` blocks."""
    size = most + 3
    blocks = Blocks(
        np.zeros(size, np.int64),
        np.zeros(size, np.int64),
        np.full(size, -1, np.int64),
        np.full(size, -1, np.int64),
        np.full(size, -1, np.int64),
        np.full(size, -1, np.int64),
        np.zeros(size + 1, np.int64),
    )
    for number in range(size - 1, 1, -1):
        blocks.spare[0] += 1
        blocks.spare[blocks.spare[0]] = number
    blocks.above[0], blocks.below[1], blocks.bytes[1] = 1, 0, room
    return blocks


@compiled
def best_hole(blocks: Blocks, need: int) -> int:
    """The first block of the smallest hole of at least `need` bytes, the lowest of equals; -1 if there is none."""
    best, best_bytes = -1, -1
    block = blocks.above[0]
    while block >= 0:
        if blocks.tensor[block] >= 0:
            block = blocks.above[block]
            continue
        first, size = block, 0
        while block >= 0 and blocks.tensor[block] < 0:
            size += blocks.bytes[block]
            block = blocks.above[block]
        if size >= need and (best < 0 or size < best_bytes):
            best, best_bytes = first, size
    return best


@compiled
def hole_at(blocks: Blocks, address: int, need: int) -> int:
    """The block in which `address` lies, where `need` bytes from there on are free; else -1."""
    block = blocks.above[0]
    while block >= 0 and blocks.at[block] + blocks.bytes[block] <= address:
        block = blocks.above[block]
    found = block
    while block >= 0 and blocks.tensor[block] < 0:
        if blocks.at[block] + blocks.bytes[block] >= address + need:
            return found  # type: ignore[no-any-return]
        block = blocks.above[block]
    return -1


@compiled
def cheapest_window(blocks: Blocks, need: int, cost: Ints, pinned: Flags) -> int:
    """The first block of the window of at least `need` bytes whose tensors cost least to evict, the lowest of equals;
    -1 if pinned tensors are in all of them. cost, pinned: per tensor."""
    best, best_cost = -1, 2**62
    first, last = blocks.above[0], blocks.above[0]
    size, total = 0, 0
    while last >= 0:
        tensor = blocks.tensor[last]
        if tensor >= 0 and pinned[tensor]:
            last = blocks.above[last]
            first, size, total = last, 0, 0
            continue
        size += blocks.bytes[last]
        total += cost[tensor] if tensor >= 0 else 0
        while size - blocks.bytes[first] >= need:
            size -= blocks.bytes[first]
            total -= cost[blocks.tensor[first]] if blocks.tensor[first] >= 0 else 0
            first = blocks.above[first]
        if size >= need and total < best_cost:
            best, best_cost = first, total
        last = blocks.above[last]
    return best


@compiled
def split(blocks: Blocks, block: int, size: int) -> int:
    """Cut a free block after `size` bytes and return the upper part, which is `block` itself for size 0."""
    if size == 0:
        return block
    upper = blocks.spare[blocks.spare[0]]
    blocks.spare[0] -= 1
    blocks.at[upper], blocks.bytes[upper] = blocks.at[block] + size, blocks.bytes[block] - size
    blocks.tensor[upper], blocks.node[upper] = -1, blocks.node[block]
    blocks.above[upper], blocks.below[upper] = blocks.above[block], block
    if blocks.above[block] >= 0:
        blocks.below[blocks.above[block]] = upper
    blocks.above[block], blocks.bytes[block] = upper, size
    return upper  # type: ignore[no-any-return]


@compiled
def take(blocks: Blocks, first: int, address: int, need: int, tensor: int, sources: Ints) -> tuple[int, int]:
    """Put a tensor at `address`, inside the hole that starts with block `first`. Returns its block and how many nodes
    it waits for, which are written to `sources`."""
    while blocks.at[first] + blocks.bytes[first] <= address:
        first = blocks.above[first]
    block = split(blocks, first, address - blocks.at[first])
    count = 0
    while True:
        if blocks.bytes[block] > need:
            split(blocks, block, need)
        if blocks.node[block] >= 0:
            sources[count] = blocks.node[block]
            count += 1
        if blocks.bytes[block] == need:
            break
        block = swallow(blocks, block)
    blocks.tensor[block] = tensor
    return block, count


@compiled
def swallow(blocks: Blocks, lower: int) -> int:
    """Merge a block with the one above it, whose number and node the result has."""
    upper = blocks.above[lower]
    blocks.at[upper], blocks.below[upper] = blocks.at[lower], blocks.below[lower]
    blocks.bytes[upper] += blocks.bytes[lower]
    blocks.above[blocks.below[lower]] = upper
    blocks.spare[0] += 1
    blocks.spare[blocks.spare[0]] = lower
    return upper  # type: ignore[no-any-return]


@compiled
def give_back(blocks: Blocks, block: int, node: int, kind: Ints) -> None:
    """Free a block; its bytes can be used when `node` has ended, at once for -1. It is merged with free neighbours that
    wait only for operators, since the later operator waits for the earlier one. kind: per node."""
    blocks.tensor[block], blocks.node[block] = -1, node
    if node >= 0 and kind[node] != COMPUTE:
        return
    for lower in (blocks.below[block], block):
        upper = blocks.above[lower]
        if lower > 0 and upper >= 0 and blocks.tensor[lower] < 0 and blocks.tensor[upper] < 0:
            first, second = blocks.node[lower], blocks.node[upper]
            if (first < 0 or kind[first] == COMPUTE) and (second < 0 or kind[second] == COMPUTE):
                block = swallow(blocks, lower)
                blocks.node[block] = max(first, second)
