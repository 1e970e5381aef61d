"""A tiling plan in the report: what is drawn is what workers hold, and names of arrays stay text."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from tests.planner.passes.tiling.elementwise import share
from tests.planner.passes.tiling.tiling_plans import PROBLEM, greedy_plan, layer_plan
from treadle.passes.tiling.cards import tiling_cards
from treadle.passes.tiling.figure import drawn_arrays, tiles_of
from treadle.passes.tiling.section import tiling_section, tiling_words
from treadle.planner.passes.tiling.problem import MeshAxis, TiledArray


@pytest.mark.parametrize("word", ["S0", "S1", "B", "D1"])
@pytest.mark.parametrize("workers", [1, 3, 6])
def test_tiles_are_drawn_where_workers_hold_them(word: str, workers: int) -> None:
    array = TiledArray(id="x", shape=(5, 7), dtype="float32", item_bytes=4)
    problem = replace(PROBLEM, mesh=(MeshAxis(name="workers", size=workers),))
    found = np.full(array.shape, -1)
    for tile in tiles_of(problem, array, (word,)):
        top, left, height, width = (
            round(each) for each in (tile.top * 5, tile.left * 7, tile.height * 5, tile.width * 7)
        )
        assert len(tile.workers) == 1
        assert (found[top : top + height, left : left + width] == -1).all()
        found[top : top + height, left : left + width] = tile.workers[0]
    held = share(array.shape, {"D1": "S1"}.get(word, word), workers)
    assert all(((found == worker) == mask).all() for worker, mask in enumerate(held))


def test_workers_that_hold_the_same_part_share_a_tile() -> None:
    problem = replace(PROBLEM, mesh=(MeshAxis(name="a", size=2), MeshAxis(name="b", size=3)))
    array = TiledArray(id="x", shape=(6, 6), dtype="float32", item_bytes=4)
    assert [tile.workers for tile in tiles_of(problem, array, ("R", "S1"))] == [(0, 3), (1, 4), (2, 5)]
    assert [tile.workers for tile in tiles_of(problem, array, ("R", "R"))] == [(0, 1, 2, 3, 4, 5)]


def test_the_section_lists_arrays_moves_and_transfers() -> None:
    section = tiling_section("layer", layer_plan())
    transfers, moves, arrays = section.tables
    assert section.title == "Tilings: layer"
    assert "7 operators on 7 arrays, of which 6 are cut, over 4 workers (2 data x 2 tensor)." in section.text
    assert transfers.rows[0] == ("allreduce by data", "after an operator", "1", "512 B")
    assert moves.rows[0][:3] == ("dw", "allreduce", "axis 1 by tensor")
    assert ("h", "8 x 8", "float32", "256 B", "axis 0 by data, axis 1 by tensor") in arrays.rows
    assert all(picture.svg.startswith("<svg") for picture in section.pictures)
    assert "2.213 us predicted" in section.pictures[1].caption


def test_the_cards_say_what_moves_what_fits_and_that_nothing_was_run() -> None:
    moved, memory, bound, checked = tiling_cards(layer_plan())
    assert (moved.value, memory.label, memory.value) == ("544 B", "fits", "by 392 B")
    assert (bound.value, checked.value) == ("0%", "checked, not run")
    assert "second copies take 192 B" in tiling_cards(greedy_plan())[1].note


def test_parameters_have_their_own_names_and_markup_stays_text() -> None:
    plan = layer_plan()
    problem = plan.decisions.problem
    nodes = (problem.nodes[0], replace(problem.nodes[1], params={"name": "<b>&fc.weight"}), *problem.nodes[2:])
    named = replace(plan, decisions=replace(plan.decisions, problem=replace(problem, nodes=nodes)))
    section = tiling_section("", named)
    assert section.tables[2].rows[1][0] == "<b>&fc.weight"
    assert "&lt;b&gt;&amp;fc.weight" in section.pictures[0].svg
    assert "<b>" not in section.pictures[0].svg


def test_large_plans_draw_one_array_of_each_kind() -> None:
    decisions = layer_plan().decisions
    arrays = tuple(replace(decisions.problem.arrays[0], id=f"x{i}", shape=(4 + i % 30, 4)) for i in range(60))
    many = replace(decisions, problem=replace(decisions.problem, arrays=arrays), tilings=(("R", "R"),) * 60)
    places, kinds = drawn_arrays(many)
    assert (len(places), kinds) == (18, 30)


def test_tilings_are_said_in_words() -> None:
    assert tiling_words(PROBLEM, ("S1",)) == "axis 1"
    assert tiling_words(layer_plan().decisions.problem, ("P", "S0")) == "partial by data, axis 0 by tensor"
    assert tiling_words(layer_plan().decisions.problem, ("R", "R")) == "whole on every worker"
