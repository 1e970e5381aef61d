"""The configuration that MAPLE takes: of those that its evaluator ranks first, the fastest measured on a part of the
operations (MAPLE, "Overview")."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.common import progress
from benchmarks.index.turns import Contender, Turns
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.index_model import IndexModel
from treadle.planner.passes.index.configurations import (
    FragmentedLog,
    GappedArray,
    IndexConfiguration,
    grid,
    name_of_leaves,
)
from treadle.planner.passes.index.evaluator import predicted_ns
from treadle.planner.passes.index.operations import Workload

SUBSET = 1_000_000
"""Operations that decide."""
TOP = 10
MODELS = "profiles/index"
SPREAD: tuple[IndexConfiguration, ...] = (
    *(GappedArray(most_search=search, most_shifts=shifts) for search, shifts in ((1, 8), (4, 32), (8, 128))),
    *(
        FragmentedLog(fragment_keys=keys, most_fragments=most, new_fragments=new)
        for keys, most, new in ((16, 512, 8), (32, 128, 8), (64, 128, 8), (64, 2048, 32), (128, 512, 8), (256, 128, 8))
    ),
)
"""Configurations of all kinds, which show what the evaluator misses; they are taken where no evaluator ships."""


class Choice(NamedTuple):
    configuration: IndexConfiguration
    missed: float
    """Throughput of the fastest of SPREAD over that of the choice, on the operations that decide."""


def chosen(workload: Workload, insert_share: float) -> Choice:
    """The fastest of the best predicted, in one run of each."""
    subset = workload.first(SUBSET)
    ranked = _ranked(subset)
    named = {name_of_leaves(each): each for each in (*ranked, *SPREAD)}
    turns = Turns({name: Contender(each, insert_share) for name, each in named.items()}, subset, 1)
    times = {name: turns.runs[name][0].time_ns for name in named if name in turns.runs}
    best = min((name_of_leaves(each) for each in ranked), key=lambda name: times.get(name, float("inf")))
    return Choice(named[best], times[best] / min(times.values()))


def _ranked(subset: Workload) -> tuple[IndexConfiguration, ...]:
    shipped = resources.names(MODELS)
    if not shipped:
        progress("no evaluator ships: the choice is the fastest of a few configurations")
        return SPREAD
    model = store.load(resources.locate(MODELS, shipped[0]), IndexModel)
    predicted = dict(zip(grid(), predicted_ns(model, subset, grid()), strict=True))
    return tuple(sorted(predicted, key=lambda each: predicted[each])[:TOP])
