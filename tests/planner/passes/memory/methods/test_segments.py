"""Cutting problems into segments, and the sub-problem of a segment."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tests.planner.passes.memory.networks import residual_network
from tests.planner.passes.memory.strategies import problems
from treadle.planner.passes.memory.methods.blocks import options
from treadle.planner.passes.memory.methods.segments import Cut, narrow_places


def assert_cut(problem) -> None:
    cut = Cut.of(problem, narrow_places(problem))
    size = len(cut.fwd)
    assert [i for fwd in cut.fwd for i in fwd] == list(range(len(problem.fwd)))
    assert [k for bwd in reversed(cut.bwd) for k in bwd] == list(range(len(problem.bwd)))
    for first in range(size):
        segment = cut.segment(first, first + 1)
        reachable = {*segment.inputs, *segment.fwd}
        assert all(i in reachable for k in segment.bwd for impl in problem.bwd[k].impls for i in impl.needs)
        assert all(j in reachable for i in segment.fwd for j in problem.fwd[i].inputs)
        assert list(segment.sub_problem(0, 0).problems()) == []


@given(problems(max_nodes=8))
def test_every_node_is_in_one_segment(problem):
    assert_cut(problem)


@given(st.integers(2, 9), st.integers(0, 50), st.booleans())
def test_networks_with_blocks(blocks, seed, skips):
    problem = residual_network(blocks, seed, skips)
    assert_cut(problem)
    for fwd in Cut.of(problem, narrow_places(problem)).fwd:
        assert problem.fwd[fwd.start].kind == "op"


def distinct(blocks: int, seed: int) -> int:
    cut = Cut.of(residual_network(blocks, seed), narrow_places(residual_network(blocks, seed)))
    return len({cut.segment(i, i + 1).signature for i in range(len(cut.fwd))})


@pytest.mark.parametrize("seed", range(4))
def test_repeated_blocks_are_found(seed):
    """More blocks make no new kinds of segments."""
    assert distinct(30, seed) == distinct(16, seed) < 12


@pytest.mark.parametrize("seed", range(4))
def test_options_are_a_front(seed):
    """No option beats another one, and keeping less takes no less time where nothing else differs."""
    problem = residual_network(4, seed)
    cut = Cut.of(problem, narrow_places(problem))
    for first in range(len(cut.fwd)):
        segment = cut.segment(first, first + 1)
        found = options(segment, 4, 5)
        assert found
        assert all(option.keep >= segment.wanted_bytes for option in found)
        assert not any(a.beats(b) for a in found for b in found if a is not b)
