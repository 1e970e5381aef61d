"""The formats of messages: the words of a payload, and back.

A payload has a head, whose size is known to the receiver, and a body, whose size the head states. Words are int32;
float32 values travel as words of the same bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from treadle.kernels.sparse import decode
from treadle.planner.passes.sparse.schemes import Format
from treadle.runtime.sparse.division import Division
from treadle.runtime.sparse.entries import Entries

WORD_BITS = 32


class Payload(NamedTuple):
    """The words of one message about one part."""

    head: Tensor
    body: Tensor


class Opened(NamedTuple):
    """What a head states: the units of the body, where it names them, and words of the body."""

    indices: Tensor | None
    bitmap: Tensor | None
    words: int


class WireFormat(ABC):
    """One format, for gradients of `width` values a unit that are divided into parts."""

    def __init__(self, division: Division, width: int, device: torch.device) -> None:
        self.division, self.width, self.device = division, width, device

    @abstractmethod
    def head_words(self, part: int) -> int: ...

    @abstractmethod
    def pack(self, part: int, entries: Entries) -> Payload: ...

    @abstractmethod
    def open(self, part: int, head: Tensor) -> Opened: ...

    def entries(self, opened: Opened, body: Tensor) -> Entries:
        """Entries of a message; they share the memory of `body`."""
        return Entries(opened.indices, self._values(body), opened.bitmap)

    def _values(self, words: Tensor) -> Tensor:
        return words.view(torch.float32).view(-1, self.width)


class CooFormat(WireFormat):
    """A count; indices and values."""

    def head_words(self, part: int) -> int:
        return 1

    def pack(self, part: int, entries: Entries) -> Payload:
        indices, values = entries.units, _words(entries.values)
        head = torch.tensor([len(indices)], dtype=torch.int32, device=indices.device)
        return Payload(head, torch.cat([indices, values]))

    def open(self, part: int, head: Tensor) -> Opened:
        return Opened(None, None, int(head) * (1 + self.width))

    def entries(self, opened: Opened, body: Tensor) -> Entries:
        count = opened.words // (1 + self.width)
        return Entries(body[:count], self._values(body[count:]))


class BitmapFormat(WireFormat):
    """A bit for each unit of the part; values in ascending order of units."""

    def head_words(self, part: int) -> int:
        return _bitmap_words(self.division.sizes[part])

    def pack(self, part: int, entries: Entries) -> Payload:
        if entries.bitmap is None:
            entries = self.division.add(part, [entries])
            assert entries.bitmap is not None
        return Payload(entries.bitmap, _words(entries.values))

    def open(self, part: int, head: Tensor) -> Opened:
        indices = decode(head, self.division.part(part))
        return Opened(indices, head, len(indices) * self.width)


class BlocksFormat(WireFormat):
    """A bit for each block of units of a range; the values of whole blocks."""

    def __init__(self, division: Division, width: int, device: torch.device, size: int) -> None:
        super().__init__(division, width, device)
        self.size = size

    def _blocks(self, part: int) -> int:
        return -(-self.division.sizes[part] // self.size)

    def head_words(self, part: int) -> int:
        return _bitmap_words(self._blocks(part))

    def pack(self, part: int, entries: Entries) -> Payload:
        within = entries.units.long() - self.division.starts[part]
        block = within // self.size
        present = torch.zeros(self._blocks(part), dtype=torch.bool, device=within.device)
        present[block] = True
        ranks = present.cumsum(0) - 1
        rows = self._rows(part, present)
        values = entries.values.new_zeros(rows, self.width)
        values.index_copy_(0, ranks[block] * self.size + within % self.size, entries.values)
        return Payload(_bits(present), _words(values))

    def open(self, part: int, head: Tensor) -> Opened:
        places = torch.arange(WORD_BITS, device=head.device, dtype=torch.int32)
        present = ((head[:, None] >> places) & 1).view(-1)[: self._blocks(part)].bool()
        units = torch.arange(self.size, device=head.device) + torch.nonzero(present) * self.size
        indices = units.view(-1)[: self._rows(part, present)] + self.division.starts[part]
        return Opened(indices.int(), None, len(indices) * self.width)

    def _rows(self, part: int, present: Tensor) -> int:
        """Units of the present blocks, of which the last may be short."""
        if not len(present):
            return 0
        missing = -self.division.sizes[part] % self.size
        return int(present.sum()) * self.size - (missing if bool(present[-1]) else 0)


class DenseFormat(WireFormat):
    """All values of the part, without a head."""

    def head_words(self, part: int) -> int:
        return 0

    def pack(self, part: int, entries: Entries) -> Payload:
        return Payload(entries.values.new_empty(0, dtype=torch.int32), _words(entries.values))

    def open(self, part: int, head: Tensor) -> Opened:
        return Opened(None, None, self.division.sizes[part] * self.width)


def wire(form: Format, division: Division, width: int, device: torch.device, block: int | None) -> WireFormat:
    """Raises ValueError for blocks without a size, and of parts that are no ranges."""
    match form:
        case "coo":
            return CooFormat(division, width, device)
        case "bitmap":
            return BitmapFormat(division, width, device)
        case "dense":
            return DenseFormat(division, width, device)
        case "blocks":
            if block is None:
                raise ValueError("blocks have no size")
            return BlocksFormat(division, width, device, block)


def _words(values: Tensor) -> Tensor:
    return values.reshape(-1).view(torch.int32)


def _bitmap_words(bits: int) -> int:
    return -(-bits // WORD_BITS)


def _bits(present: Tensor) -> Tensor:
    """Words with a bit for each element, the first one lowest."""
    padded = torch.nn.functional.pad(present.long(), (0, -len(present) % WORD_BITS)).view(-1, WORD_BITS)
    return (padded << torch.arange(WORD_BITS, device=present.device)).sum(1).to(torch.int32)
