"""Windows that slide over an image: sizes, padding, and which pixels a cell of the window meets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

Pair = tuple[int, int]
Shape = Sequence[int]
Size = int | Sequence[int]
"""A number for height and width, or one for each."""


def pair(value: Size) -> Pair:
    """`value` for height and width, where one number stands for both."""
    if isinstance(value, int):
        return value, value
    return (value[0], value[0]) if len(value) == 1 else (value[0], value[1])


def output_size(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool = False) -> int:
    """How many windows fit into `size` pixels. With `ceil_mode` the last may hang over, but not start past the end."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    if not ceil_mode:
        return span // stride + 1
    count = -(-span // stride) + 1
    return count - 1 if (count - 1) * stride >= size + padding else count


def cells(
    image: Pair, windows: Pair, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> Iterator[tuple[int, int, tuple[slice, slice], tuple[slice, slice]]]:
    """For each cell (i, j) of the window, row by row: the pixels that it meets inside the image, as slices of the
    image, and the windows in which it meets them, as slices of the output. Cells that meet none are left out."""
    reach = [_met(*axis) for axis in zip(image, windows, kernel, stride, padding, dilation, strict=True)]
    for i, rows in enumerate(reach[0]):
        for j, columns in enumerate(reach[1]):
            if rows is not None and columns is not None:
                yield i, j, (rows[0], columns[0]), (rows[1], columns[1])


def _met(
    size: int, windows: int, kernel: int, stride: int, padding: int, dilation: int
) -> list[tuple[slice, slice] | None]:
    met: list[tuple[slice, slice] | None] = []
    for place in range(kernel):
        shift = place * dilation - padding
        first = max(0, -(shift // stride))
        last = min(windows, (size - 1 - shift) // stride + 1)
        start = first * stride + shift
        count = last - first
        met.append((slice(start, start + (count - 1) * stride + 1, stride), slice(first, last)) if count > 0 else None)
    return met


def padded(x: Tensor, padding: Pair) -> Tensor:
    """`x` with a border of zeros; `x` itself where the border is empty."""
    height, width = padding
    return F.pad(x, (width, width, height, height)) if height or width else x


def layout(like: Tensor) -> torch.memory_format:
    """The memory format of results made from `like`: channels last where it is clearly that, else row by row."""
    last = like.dim() in (4, 5) and not like.is_contiguous()
    if last and like.is_contiguous(memory_format=_LAST[like.dim()]):
        return _LAST[like.dim()]
    return torch.contiguous_format


_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
