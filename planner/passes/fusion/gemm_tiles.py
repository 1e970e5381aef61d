"""In which order a GEMM makes its tiles so that a collective can follow it, chunk by chunk (CoCoNet, section 5.3).

A chunk is a rectangle of the GEMM's result, or several where a contiguous range begins or ends inside a row. A tile may
feed several chunks and a chunk needs several tiles: the producer adds one to the counter of every chunk that a
finished tile feeds, and the consumer of chunk c waits until that counter has grown by `need[c]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from treadle.planner.errors import InputError


@dataclass(frozen=True)
class Rectangle:
    """`rows` x `columns` elements from (`row`, `column`) on."""

    row: int
    column: int
    rows: int
    columns: int


Chunk = tuple[Rectangle, ...]
"""Disjoint parts of the result; none: an empty chunk, which needs no tile."""


@dataclass(frozen=True)
class TileTable:
    """Tiles are numbered row by row in a grid of `grid_rows` x `grid_columns`, the last ones ragged.

    Threadblock tickets 0, 1, ... take `order[ticket]`; tile t feeds chunks `feeds[feeds_start[t]:feeds_start[t + 1]]`.
    """

    grid_rows: int
    grid_columns: int
    order: tuple[int, ...]
    need: tuple[int, ...]
    """By chunk: how many tiles it is made of."""
    feeds_start: tuple[int, ...]
    feeds: tuple[int, ...]

    def fed_by(self, tile: int) -> tuple[int, ...]:
        return self.feeds[self.feeds_start[tile] : self.feeds_start[tile + 1]]


def tile_table(
    rows: int, columns: int, tile: tuple[int, int], chunks: Sequence[Chunk], steps: Sequence[Sequence[int]]
) -> TileTable:
    """The table of one rank's GEMM of a `rows` x `columns` result in tiles of `tile` (rows, columns).

    `steps` are the numbers of the chunks that are consumed together, by all channels, in the order of the ring: all of
    a step come before those of the next. Tiles that no chunk needs come last. Raises InputError for a chunk outside
    the result, or one that no step or two consume.
    """
    grid_rows, grid_columns = -(-rows // tile[0]), -(-columns // tile[1])
    consumed = [chunk for step in steps for chunk in step]
    if sorted(consumed) != list(range(len(chunks))):
        raise InputError(f"found steps of {len(consumed)} chunks, expected each of {len(chunks)} once")
    order: dict[int, None] = {}
    feeds: list[list[int]] = [[] for _ in range(grid_rows * grid_columns)]
    need = [0] * len(chunks)
    for number in consumed:
        tiles = _tiles(rows, columns, tile, chunks[number])
        need[number] = len(tiles)
        for found in tiles:
            order[found] = None
            feeds[found].append(number)
    order |= dict.fromkeys(range(len(feeds)))
    starts = [0]
    for fed in feeds:
        starts.append(starts[-1] + len(fed))
    return TileTable(
        grid_rows,
        grid_columns,
        tuple(order),
        tuple(need),
        tuple(starts),
        tuple(chunk for fed in feeds for chunk in sorted(fed)),
    )


def flat_chunk(begin: int, end: int, columns: int) -> Chunk:
    """Elements `begin` to `end` of the row-major result: at most a part of a row, whole rows, a part of a row."""
    return tuple(_flat(begin, end, columns))


def _flat(begin: int, end: int, columns: int) -> Iterator[Rectangle]:
    if begin < end and begin % columns:
        stop = min(end, begin - begin % columns + columns)
        yield Rectangle(begin // columns, begin % columns, 1, stop - begin)
        begin = stop
    if end - begin >= columns:
        yield Rectangle(begin // columns, 0, (end - begin) // columns, columns)
        begin += (end - begin) // columns * columns
    if begin < end:
        yield Rectangle(begin // columns, 0, 1, end - begin)


def _tiles(rows: int, columns: int, tile: tuple[int, int], chunk: Chunk) -> list[int]:
    """Tiles that meet the chunk, in ascending order."""
    found: set[int] = set()
    for part in chunk:
        if min(part.row, part.column) < 0 or part.row + part.rows > rows or part.column + part.columns > columns:
            raise InputError(f"found the chunk {part}, expected one inside a result of {rows} x {columns}")
        if part.rows and part.columns:
            down = range(part.row // tile[0], (part.row + part.rows - 1) // tile[0] + 1)
            across = range(part.column // tile[1], (part.column + part.columns - 1) // tile[1] + 1)
            found.update(row * -(-columns // tile[1]) + column for row in down for column in across)
    return sorted(found)
