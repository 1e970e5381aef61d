"""Prices of getting an array from one tiling to another, and the graph of rules made of them."""

from __future__ import annotations

import pytest

from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.graph import FORBIDDEN
from treadle.planner.passes.tiling.problem import MeshAxis, TiledArray, TransferCost
from treadle.planner.passes.tiling.redistribution import TilingPrices, tilings_of

MATRIX = TiledArray(id="a", shape=(8, 12), dtype="float32", item_bytes=4)


def mesh(*sizes: int) -> tuple[MeshAxis, ...]:
    return tuple(MeshAxis(name=f"axis{place}", size=size) for place, size in enumerate(sizes))


def exact(*sizes: int) -> TilingPrices:
    return TilingPrices(mesh(*sizes), "exact")


@pytest.mark.parametrize(
    ("sizes", "before", "after", "elements"),
    [
        ((4,), "S0", "R", 3 * 96),  # each of 4 workers gets the 72 that it lacks
        ((4,), "S0", "S1", 72),  # 3 of 4 parts of every worker's 24
        ((4,), "P", "R", 2 * 3 * 96),
        ((4,), "P", "S1", 3 * 96),
        ((4,), "R", "S1", 0),
        ((2, 4), "S0,S0", "R,R", 4 * 96 + 3 * 48 * 2),  # the later axis first: both its groups share a half
        ((2, 4), "S0,R", "R,S1", 4 * 24),  # a free cut by the second axis leaves a quarter to gather
        ((2, 4), "S0,S0", "S1,S0", 72 + 96 + 144),  # the second axis makes way for the first, cut free at the end
    ],
)
def test_elements_moved(sizes: tuple[int, ...], before: str, after: str, elements: int) -> None:
    table = exact(*sizes).table(MATRIX)
    ends = tuple(before.split(",")), tuple(after.split(","))
    path = table.path(*ends)
    assert sum(priced.elements for priced in path) == sum(priced.cost for priced in path) == elements
    assert table.costs[table.places[ends[0]], table.places[ends[1]]] == elements


def test_no_path_makes_partial_results() -> None:
    table = exact(2, 4).table(MATRIX)
    assert table.costs[table.places["R", "R"], table.places["P", "R"]] == FORBIDDEN
    with pytest.raises(InputError, match="no collectives turn S0,R into P,R"):
        table.path(("S0", "R"), ("P", "R"))


def test_paths_add_up_to_their_prices() -> None:
    prices = exact(2, 2, 2)
    table = prices.table(MATRIX)
    for row, before in enumerate(table.tilings):
        for column, after in enumerate(table.tilings):
            if table.costs[row, column] < FORBIDDEN:
                path = table.path(before, after)
                assert sum(priced.cost for priced in path) == table.costs[row, column]
                assert (path[-1].step.tiling if path else before) == after


def test_gathered_alltoall_moves_what_an_allgather_does() -> None:
    axis = MeshAxis(name="w", size=4, alltoall="gathered")
    table = TilingPrices((axis,), "exact").table(MATRIX)
    assert table.costs[table.places["S0",], table.places["S1",]] == 3 * 96


def test_times_come_from_the_transfers_of_the_axis() -> None:
    costs = tuple(TransferCost(transfer=name, alpha_ns=100, rate=10**9) for name in ("allgather", "allreduce"))
    with pytest.raises(InputError, match="axis 'w' of the mesh has no costs for 'alltoall'"):
        TilingPrices((MeshAxis(name="w", size=4, costs=costs),), "time").table(MATRIX)
    vector = TiledArray(id="v", shape=(3,), dtype="float32", item_bytes=4)  # 4 workers do not divide it
    table = TilingPrices((MeshAxis(name="w", size=4, costs=costs),), "time").table(vector)
    assert table.tilings == (("R",), ("P",))
    assert table.costs.tolist() == [[0, FORBIDDEN], [112, 0]]


def test_tilings_divide() -> None:
    assert tilings_of((4, 3), (2, 2), partial=False) == (("S0", "S0"), ("S0", "R"), ("R", "S0"), ("R", "R"))
