"""What one collective takes: against formulas by hand, by algorithm, and by size."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planner.machine.machines import shipped
from treadle.planner.machine.collectives import Algorithm, Config, Movement, Placement, alone, placement, timing

SIMPLE = Config("ring", "Simple", 16, 524288)


def test_a_ring_in_a_node() -> None:
    """2 (n-1) hops of 3.4 us; 2 (n-1)/n of the payload at 80 % of a port."""
    machine = shipped("dgx2")
    timed = timing(Movement("AllReduce", 1e6), placement(machine, 16, 1), machine, SIMPLE)
    assert timed is not None
    assert timed.latency == pytest.approx(30 * 3.4)
    assert timed.node == pytest.approx(2 * 15 / 16 * 1e6 / (0.8 * 2**20 / 8))
    assert timed.channel == pytest.approx(2 * 15 / 16 * 1e6 / (16 * 17e3))
    assert (timed.network, timed.rounds) == (0, 1)


def test_a_ring_over_nodes() -> None:
    """16 of 255 hops leave a node; all bytes of the ring do, through eight NICs, or two of two channels."""
    machine = shipped("dgx2", 16)
    place = placement(machine, 256, 1)
    timed = timing(Movement("ReduceScatter", 1e9), place, machine, SIMPLE)
    assert timed is not None
    assert timed.latency == pytest.approx(239 * 3.4 + 16 * 9.6)
    assert timed.network == pytest.approx(255 / 256 * 1e9 / (8 * 0.8 * 2**20 / 106))
    two = timing(Movement("ReduceScatter", 1e9), place, machine, replace(SIMPLE, channels=2))
    assert two is not None
    assert two.network == pytest.approx(4 * timed.network)
    assert timed.rounds == 1
    assert two.rounds == 4


def test_algorithms_and_where_they_go() -> None:
    machine = shipped("dgx2", 16)
    inside, outside = placement(machine, 16, 1), placement(machine, 256, 1)

    def runs(op: str, place: Placement, algorithm: Algorithm) -> bool:
        return timing(Movement(op, 1e6), place, machine, replace(SIMPLE, algorithm=algorithm)) is not None

    assert [runs("AllReduce", inside, a) for a in ("ring", "all-pairs", "hierarchical", "tree")] == [1, 1, 0, 1]
    assert [runs("AllReduce", outside, a) for a in ("ring", "all-pairs", "hierarchical", "tree")] == [1, 0, 1, 1]
    assert [runs("ReduceScatter", outside, a) for a in ("ring", "all-pairs", "hierarchical", "tree")] == [1, 0, 1, 0]


@given(st.integers(1, 2**24), st.integers(1, 2**24), st.integers(2, 256))
@settings(max_examples=20)
def test_more_costs_more(one: int, other: int, ranks: int) -> None:
    less, more = sorted((one, other))
    machine = shipped("dgx2", 16)
    place = placement(machine, ranks, 1)
    for op in ("AllReduce", "ReduceScatter", "AllToAll", "Broadcast"):
        assert alone(Movement(op, less), place, machine) <= alone(Movement(op, more), place, machine)
        assert alone(Movement(op, less), place, machine) < inf
