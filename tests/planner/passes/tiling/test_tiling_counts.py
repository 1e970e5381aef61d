"""The checker's counts of elements, against a count of one element after the other."""

from __future__ import annotations

import random

import pytest

from tests.planner.passes.tiling.elementwise import edges_of
from tests.planner.passes.tiling.random_problems import published
from treadle.planner.passes.tiling.check_published import CountedTilings, source_word, words_of
from treadle.planner.passes.tiling.decisions import NodeTiling, TilingDecisions
from treadle.planner.passes.tiling.problem import TilingProblem


def drawn_words(problem: TilingProblem, seed: int) -> dict[str, str] | None:
    """A random tiling of each array; views have that of their source. None where that is impossible."""
    draw, words = random.Random(seed), dict[str, str]()
    arrays, all_words = {array.id: array for array in problem.arrays}, words_of(problem)
    for node in problem.nodes:
        name = node.outputs[0]
        choices = all_words[name]
        if node.operator in ("slice", "filter", "swapaxis"):
            rank = len(arrays[name].shape)
            choices = tuple(word for word in choices if source_word(node, word, rank) == words[node.inputs[0]])
        if not choices:
            return None
        words[name] = draw.choice(choices)
    return words


def with_words(problem: TilingProblem, words: dict[str, str]) -> TilingDecisions:
    """Decisions of which only the tilings count."""
    return TilingDecisions(
        problem=problem,
        method="exact",
        tilings=tuple((words[array.id],) for array in problem.arrays),
        nodes=tuple(NodeTiling(node=node.id, reads=(), makes=()) for node in problem.nodes),
        edges=(),
        cost=0,
        moved_bytes=0,
        memory_bytes=0,
        time_ns=0,
    )


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_moved_elements_are_those_that_masks_count(first: int) -> None:
    compared = 0
    for seed in range(first, first + 20):
        problem = published(seed, model="exact")
        if words := drawn_words(problem, seed):
            sizes = {array.id: array.item_bytes for array in problem.arrays}
            edges = CountedTilings(with_words(problem, words)).edges
            counted = [(edge.array, edge.node, edge.reading, edge.cost) for edge in edges]
            assert counted == [*edges_of(problem, words)], (seed, words)
            assert all(edge.bytes == edge.cost * sizes[edge.array] for edge in edges)
            compared += len(counted)
    assert compared > 20
