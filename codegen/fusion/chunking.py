"""From the chunks of a collective to the elements of its tensor and of a rank's slice (CoCoNet, section 5.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from treadle.codegen.fusion.typed import TypedProgram
from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.layouts import FLAT, RingTile, Sliced
from treadle.planner.passes.fusion.refusal import TypeRefusal


@dataclass(frozen=True)
class Piece:
    """What an iteration moves of a chunk: where it begins in the tensor and in its owner's slice, its elements, and how
    many of them stand in a row, 0 when they all follow one another; rows are `pitch` elements apart in the tensor and
    `local_pitch` in the slice."""

    begin: int
    local: int
    count: int
    columns: int = 0
    pitch: int = 0
    local_pitch: int = 0


@dataclass(frozen=True)
class Chunking:
    """How chunks lie in the tensor: `part` elements of each owner in `pieces` chunks of `width`, of which an iteration
    moves `longest`; or the tiles of a ring. With `columns` these are rectangles of that width, in rows of `pitch`."""

    size: int
    pieces: int
    part: int
    width: int
    longest: int
    tiles: RingTile | None
    ranks: int
    columns: int = 0
    pitch: int = 0

    @property
    def iterations(self) -> int:
        if self.tiles is not None:
            return -(-self.size // (self.ranks * self.tiles.channels * self.tiles.capacity))
        if self.columns:
            return -(-self.width // self.pitch // self.rows) * self.across
        return -(-self.width // self.longest) if self.size else 0

    @property
    def rows(self) -> int:
        """Rows of a rectangle."""
        return self.longest // self.columns

    @property
    def across(self) -> int:
        """Rectangles in a row."""
        return -(-self.pitch // self.columns)

    def piece(self, iteration: int, number: int) -> Piece:
        """What an iteration moves of chunk `number`: `of` in C++."""
        if self.columns:
            row, column = iteration // self.across * self.rows, iteration % self.across * self.columns
            local = number % self.pieces * self.width + row * self.pitch
            begin = number // self.pieces * self.part + local
            left = min(self.part - local, self.size - begin) // self.pitch
            rows = max(0, min(self.rows, self.width // self.pitch - row, left))
            columns = min(self.columns, self.pitch - column)
            return Piece(begin + column, local + column, rows * columns, columns, self.pitch, self.pitch)
        if self.tiles is None:
            local = number % self.pieces * self.width + iteration * self.longest
            begin = number // self.pieces * self.part + local
            count = min(self.longest, self.width - iteration * self.longest, self.part - local, self.size - begin)
            return Piece(begin, local, max(0, count))
        tiles, share = self.tiles, self.tiles.channels * self.tiles.capacity
        base = iteration * self.ranks * share
        count = (
            -(-min(tiles.capacity, -(-(self.size - base) // (self.ranks * tiles.channels))) // tiles.align)
            * tiles.align
        )
        owner, channel = divmod(number, tiles.channels)
        place = owner * tiles.channels + channel if tiles.rank_major else channel * self.ranks + owner
        begin = base + place * count
        return Piece(begin, iteration * share + channel * count, max(0, min(count, self.size - begin)))

    @property
    def type(self) -> str:
        if self.tiles is not None:
            t = self.tiles
            order = str(t.rank_major).lower()
            return f"RingChunks<{self.size}, {t.channels}, {t.capacity}, {t.align}, {order}, {self.ranks}>"
        if self.columns:
            shape = f"{self.rows}, {self.columns}, {self.pitch}"
            return f"Rectangles<{self.size}, {self.part}, {self.pieces}, {self.width}, {shape}>"
        return f"BlockChunks<{self.size}, {self.part}, {self.pieces}, {self.width}, {self.longest if self.size else 1}>"


@dataclass(frozen=True)
class Columns:
    """Slices along another dimension than the first: `rows` of `pitch` elements, of which each owner has `part`
    columns, the last ones fewer or none, in `pieces` chunks of `height` rows. An iteration moves `down` rows and
    `across` columns of each chunk."""

    rows: int
    pitch: int
    part: int
    pieces: int
    height: int
    down: int
    across: int
    ranks: int

    @property
    def longest(self) -> int:
        return self.down * self.across

    @property
    def iterations(self) -> int:
        return -(-self.height // self.down) * -(-self.part // self.across) if self.rows * self.pitch else 0

    def piece(self, iteration: int, number: int) -> Piece:
        """What an iteration moves of chunk `number`: `of` in C++."""
        owner, beside = number // self.pieces, -(-self.part // self.across)
        first = min(self.pitch, owner * self.part)
        width = min(self.pitch, first + self.part) - first
        within, column = iteration // beside * self.down, iteration % beside * self.across
        row = number % self.pieces * self.height + within
        rows = max(0, min(self.down, self.height - within, self.rows - row))
        columns = max(0, min(self.across, width - column))
        begin = row * self.pitch + first + column
        return Piece(begin, row * width + column, rows * columns, max(1, columns), self.pitch, width)

    @property
    def type(self) -> str:
        shape = f"{self.rows}, {self.pitch}, {self.part}, {self.pieces}, {self.height}"
        return f"ColumnChunks<{shape}, {self.down}, {self.across}>"


def in_columns(sliced: Sliced | None, extents: Sequence[int], ranks: int) -> tuple[int, int, int] | None:
    """Rows, elements of a row and the most of them that a rank owns, where slices are no runs of neighbouring
    elements; None where they are."""
    if sliced is None or sliced.dim == FLAT or isinstance(sliced.map, RingTile):
        return None
    rows, inner = prod(extents[: sliced.dim]), prod(extents[sliced.dim + 1 :])
    extent = extents[sliced.dim]
    return None if rows == 1 else (rows, extent * inner, -(-extent // ranks) * inner)


def chunking_of(
    stage: str,
    collective: str,
    typed: TypedProgram,
    extents: Sequence[int],
    ranks: int,
    sliced: Sliced | None,
    *,
    grain: int,
    most: int,
    shape: tuple[int, int] | None = None,
) -> Chunking | Columns:
    """Chunks of a tensor of these extents, of which each rank owns a slice where it is `sliced`. Large ones begin at
    multiples of `grain` elements; a message carries `most` of each, or rows and columns of `shape` where parts are
    whole rows and no `grain` has elements of two (CoCoNet, section 5.3).

    Raises TypeRefusal for ring tiles on other algorithms than a ring's and for columns on those that finish them
    elsewhere than at their owners, InputError for rows that AllToAll cannot divide.
    """
    size = prod(extents)
    if sliced is not None and isinstance(sliced.map, RingTile):
        tiles = sliced.map
        if typed.chunks != ranks * tiles.channels or not regular(typed, ranks):
            raise TypeRefusal(stage, "5.4", "found ring tiles on an algorithm without one owner of each chunk")
        return Chunking(size, tiles.channels, 0, 0, -(-tiles.capacity // tiles.align) * tiles.align, tiles, ranks)
    if (found := in_columns(sliced, extents, ranks)) is not None:
        if typed.chunks % ranks or (collective == "allreduce" and not regular(typed, ranks)):
            raise TypeRefusal(stage, "5.3", "found slices of columns on an algorithm that finishes them elsewhere")
        rows, pitch, part = found
        pieces = typed.chunks // ranks
        height = max(1, -(-rows // pieces))
        across = max(1, min(part, most if shape is None else shape[0] * shape[1]) // grain * grain)
        down = max(1, min(height, most // across, *(shape[:1] if shape is not None else ())))
        return Columns(rows, pitch, part, pieces, height, down, across, ranks)
    if collective == "alltoall" and extents[0] % ranks:
        raise InputError(f"{stage}: found {extents[0]} rows for {ranks} ranks, expected as many for each")
    parted = collective in ("alltoall", "reducescatter", "allgather") or sliced is not None
    if collective == "allreduce":
        parted = regular(typed, ranks)
    part = _part(sliced, extents, ranks) if parted else size
    pieces = typed.chunks // ranks if parted else typed.chunks
    if shape is not None and collective != "alltoall" and len(extents) > 1 and size:
        pitch, columns = extents[-1], min(shape[1], extents[-1])
        if not (part % pitch or pitch % grain or columns % grain):
            rows = -(-(part // pitch) // pieces)
            longest = min(shape[0], rows) * columns
            return Chunking(size, pieces, part, rows * pitch, longest, None, ranks, columns, pitch)
    least = -(-part // pieces)
    grain = grain if least >= 16 * grain else 1
    width = max(1, -(-least // grain) * grain)
    return Chunking(size, pieces, part, width, min(width, max(grain, most // grain * grain)), None, ranks)


def _part(sliced: Sliced | None, extents: Sequence[int], ranks: int) -> int:
    """The most elements that a rank owns."""
    if sliced is None or sliced.dim == FLAT:
        return -(-prod(extents) // ranks)
    return -(-extents[sliced.dim] // ranks) * prod(extents[sliced.dim + 1 :])


def regular(typed: TypedProgram, ranks: int) -> bool:
    """Whether rank r finishes the r-th part of the chunks."""
    pieces = typed.chunks // ranks
    return pieces > 0 and all(owner == chunk // pieces for chunk, owner in typed.owners.items())
