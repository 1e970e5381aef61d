"""The public package: its docstrings are true."""

from __future__ import annotations

import doctest

import treadle.index
from treadle.runtime.index import learned_index


def test_the_example_of_the_class_is_true() -> None:
    assert treadle.index.LearnedIndex is learned_index.LearnedIndex
    assert doctest.testmod(learned_index).failed == 0
    assert doctest.testmod(learned_index).attempted == 5
