"""A made-up cost of index operations, which a model must be able to learn from pictures."""

from __future__ import annotations

import numpy as np

from treadle.planner.passes.index.configurations import FragmentedLog, GappedArray, IndexConfiguration
from treadle.planner.passes.index.operations import INSERT, Workload


def made_up_ns(of: IndexConfiguration, workload: Workload, insert_share: float) -> float:
    """ns of all operations: gapped arrays are slow to insert into where keys are hard, fragmented logs slow to look up
    in, the more so the larger their fragments."""
    keys = np.concatenate([workload.keys, workload.operations.keys[workload.operations.ops == INSERT]])
    gaps = np.diff(np.sort(keys)).astype(np.float64)
    hard = float(np.std(np.log2(np.maximum(gaps, 1)))) if len(gaps) else 0.0
    size = np.log2(2 + len(keys))
    if isinstance(of, GappedArray):
        lookup = 4 * size + 5 * min(hard, of.most_search)
        insert = 8 * size + 40 * hard * (1 + of.most_shifts / 64)
    else:
        assert isinstance(of, FragmentedLog)
        lookup = 5 * size + of.fragment_keys / 4
        insert = 7 * size + 800 / of.fragment_keys + 3 * np.log2(of.new_fragments) + 200 / of.most_fragments
    return float(len(workload.operations.ops) * (insert_share * insert + (1 - insert_share) * lookup))
