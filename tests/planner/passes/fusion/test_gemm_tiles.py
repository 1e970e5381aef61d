"""Tile tables against a look at every element."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.gemm_tiles import Chunk, Rectangle, flat_chunk, tile_table

SIZES = st.integers(1, 9)


def elements(chunk):
    return [
        (row, column)
        for part in chunk
        for row in range(part.row, part.row + part.rows)
        for column in range(part.column, part.column + part.columns)
    ]


def chunk_grid(rows: int, columns: int, chunk: tuple[int, int]) -> tuple[Chunk, ...]:
    """The result in rectangles of `chunk` (rows, columns), row by row, the last ones ragged."""
    return tuple(
        (Rectangle(row, column, min(chunk[0], rows - row), min(chunk[1], columns - column)),)
        for row in range(0, rows, chunk[0])
        for column in range(0, columns, chunk[1])
    )


@st.composite
def cases(draw):
    rows, columns, tile = draw(SIZES), draw(SIZES), (draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    if draw(st.booleans()):
        chunks = chunk_grid(rows, columns, (draw(SIZES), draw(SIZES)))
    else:
        cuts = sorted(draw(st.lists(st.integers(0, rows * columns), max_size=5)))
        ends = [0, *cuts, rows * columns]
        chunks = tuple(flat_chunk(a, b, columns) for a, b in pairwise(ends))
    order = draw(st.permutations(range(len(chunks))))
    width = draw(st.integers(1, 3))
    steps = [order[k : k + width] for k in range(0, len(order), width)]
    return rows, columns, tile, chunks, steps


@given(cases())
def test_every_chunk_waits_for_its_tiles(case):
    rows, columns, tile, chunks, steps = case
    table = tile_table(*case)
    met = [{(row // tile[0], column // tile[1]) for row, column in elements(chunk)} for chunk in chunks]
    met = [{row * table.grid_columns + column for row, column in tiles} for tiles in met]
    assert sorted(e for chunk in chunks for e in elements(chunk)) == [
        (r, c) for r in range(rows) for c in range(columns)
    ]
    assert list(table.need) == [len(tiles) for tiles in met]
    for number in range(table.grid_rows * table.grid_columns):
        assert table.fed_by(number) == tuple(c for c, tiles in enumerate(met) if number in tiles)
    assert sorted(table.order) == list(range(table.grid_rows * table.grid_columns))
    first = [min((at for at, step in enumerate(steps) if any(t in met[c] for c in step))) for t in table.order]
    assert first == sorted(first), "tiles of a step come before those of the next"


def test_ragged_edges_of_a_flat_chunk():
    assert flat_chunk(3, 17, 5) == (Rectangle(0, 3, 1, 2), Rectangle(1, 0, 2, 5), Rectangle(3, 0, 1, 2))
    assert flat_chunk(3, 4, 5) == (Rectangle(0, 3, 1, 1),)
    assert flat_chunk(7, 7, 5) == ()


def test_a_tile_may_feed_several_chunks():
    chunks = [flat_chunk(0, 6, 4), flat_chunk(6, 12, 4)]
    table = tile_table(3, 4, (2, 2), chunks, [[1], [0]])
    assert table.order == (1, 2, 3, 0)
    assert table.need == (2, 3)
    assert table.fed_by(1) == (0, 1)


@pytest.mark.parametrize("steps", [[[0]], [[0, 1], [1]], [[0, 2]]])
def test_every_chunk_is_consumed_once(steps):
    with pytest.raises(InputError, match="expected each of 2 once"):
        tile_table(2, 4, (2, 2), [flat_chunk(0, 4, 4), flat_chunk(4, 8, 4)], steps)


def test_chunks_lie_inside():
    with pytest.raises(InputError, match="inside a result of 2 x 4"):
        tile_table(2, 4, (2, 2), [flat_chunk(0, 9, 4)], [[0]])
