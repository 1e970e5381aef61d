"""A made-up cost of index operations, which a model must be able to learn from pictures."""

from __future__ import annotations

import numpy as np

from treadle.planner.passes.index.configurations import GappedArray, IndexConfiguration
from treadle.planner.passes.index.operations import INSERT, Workload


def hardness(workload: Workload) -> float:
    """How unlike distances between keys are."""
    keys = np.concatenate([workload.keys, workload.operations.keys[workload.operations.ops == INSERT]])
    gaps = np.diff(np.sort(keys)).astype(np.float64)
    return float(np.std(np.log2(np.maximum(gaps, 1)))) if len(gaps) else 0.0


def made_up_ns(of: IndexConfiguration, workload: Workload, insert_share: float, hard: float | None = None) -> float:
    """ns of all operations: gapped arrays are slow to insert into where keys are hard, fragmented logs slow to look up
    in, the more so the larger their fragments."""
    hard = hardness(workload) if hard is None else hard
    size = float(np.log2(2 + len(workload.keys)))
    if isinstance(of, GappedArray):
        lookup = 4 * size + 5 * min(hard, of.most_search)
        insert = 8 * size + 40 * hard * (1 + of.most_shifts / 64)
    else:
        lookup = 5 * size + of.fragment_keys / 4
        insert = 7 * size + 800 / of.fragment_keys + 3 * float(np.log2(of.new_fragments)) + 200 / of.most_fragments
    return len(workload.operations.ops) * (insert_share * insert + (1 - insert_share) * lookup)
