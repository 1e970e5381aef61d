"""Flags, one bit each: 8 to a byte, the first in the lowest bit, in the logical (row by row) order of the elements.

Eight flags, one byte each, are read as one 64 bit word; a multiplication moves them into its highest byte
("SWAR"). The elements are worked off in blocks, so that what is unpacked stays small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

BLOCK = 1 << 20
"""Flags that are unpacked at a time; a multiple of 8."""

_GATHER = 0x0102040810204080
_REPEAT = 0x0101010101010101
_PICK = 0x8040201008040201 - (1 << 64)


def packed(like: Tensor, flags: Callable[[Tensor, Tensor], object]) -> Tensor:
    """uint8 [ceil(n/8)]: `flags(values, into)` has to fill the bool tensor `into` from `values`, elements of `like`.
    Workspace: n bytes, at most BLOCK where `like` is contiguous."""
    count = like.numel()
    bits = like.new_empty((count + 7) // 8, dtype=torch.uint8)
    if like.is_contiguous():
        flat = like.view(-1)
        for start in range(0, count, BLOCK):
            values = flat[start : start + BLOCK]
            room = _room(len(values), like.device)
            flags(values, room[: len(values)].view(torch.bool))
            _gather(room, bits[start // 8 : start // 8 + len(room) // 8])
            del room
    elif count:
        room = _room(count, like.device)
        flags(like, room[:count].view(torch.bool).view(like.shape))
        _gather(room, bits)
    return bits


def unpacked(bits: Tensor, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Block by block the flags in `bits` (uint8, 0 or 1) and the elements of each of `tensors`, all of one shape.
    Workspace: n bytes, at most BLOCK where all of `tensors` are contiguous. Nothing of a block may be held on to."""
    shape, count = tensors[0].shape, tensors[0].numel()
    if all(tensor.is_contiguous() for tensor in tensors):
        flats = [tensor.view(-1) for tensor in tensors]
        for start in range(0, count, BLOCK):
            size = min(BLOCK, count - start)
            flags = _scatter(bits[start // 8 : (start + size + 7) // 8])
            yield flags[:size], *(flat[start : start + size] for flat in flats)
            del flags
    elif count:
        yield _scatter(bits)[:count].view(shape), *tensors


def words(values: Tensor) -> Tensor:
    """`values` read as integers of the same size."""
    return values.view(_INTEGERS[values.element_size()])


def kept(flags: Tensor, like: Tensor) -> Tensor:
    """All bits of a `words(like)` element where `flags` is true, else none. With these an `and` picks elements without
    branches, and whatever they hold: infinities and NaN too."""
    return flags.to(_INTEGERS[like.element_size()]).neg_()


_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _room(count: int, device: torch.device) -> Tensor:
    room = torch.empty((count + 7) // 8 * 8, dtype=torch.uint8, device=device)
    room[count:].zero_()
    return room


def _gather(flags: Tensor, into: Tensor) -> None:
    groups = flags.view(torch.int64)
    groups.mul_(_GATHER)
    groups.bitwise_right_shift_(56)
    into.copy_(groups)


def _scatter(bits: Tensor) -> Tensor:
    groups = bits.to(torch.int64)
    groups.mul_(_REPEAT)
    groups.bitwise_and_(_PICK)
    return groups.view(torch.uint8).clamp_(max=1)
