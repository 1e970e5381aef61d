"""The configuration that MAPLE takes: the fastest measured on a part of the operations."""

from __future__ import annotations

from benchmarks.index.turns import Contender, Turns
from treadle.planner.passes.index.configurations import (
    FragmentedLog,
    GappedArray,
    IndexConfiguration,
    name_of_leaves,
)
from treadle.planner.passes.index.operations import Workload

SUBSET = 1_000_000
"""Operations that decide."""
CANDIDATES: tuple[IndexConfiguration, ...] = (
    *(GappedArray(most_search=search, most_shifts=shifts) for search, shifts in ((1, 8), (4, 32), (8, 128))),
    *(
        FragmentedLog(fragment_keys=keys, most_fragments=most, new_fragments=new)
        for keys, most, new in ((16, 512, 8), (32, 128, 8), (64, 128, 8), (64, 2048, 32), (128, 512, 8), (256, 128, 8))
    ),
)


def chosen(workload: Workload, insert_share: float) -> IndexConfiguration:
    """The fastest of CANDIDATES in one run each."""
    subset = workload.first(SUBSET)
    named = {name_of_leaves(each): each for each in CANDIDATES}
    turns = Turns({name: Contender(each, insert_share) for name, each in named.items()}, subset, 1)
    return named[min(turns.runs, key=lambda name: turns.runs[name][0].time_ns)]
