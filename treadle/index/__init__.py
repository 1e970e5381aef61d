"""Ordered maps of 64-bit keys that adapt to a workload: `LearnedIndex` with the leaves that an index plan chose."""

from __future__ import annotations

from treadle.planner.passes.index.configurations import FragmentedLog, GappedArray
from treadle.runtime.index.learned_index import LearnedIndex

__all__ = ["FragmentedLog", "GappedArray", "LearnedIndex"]
