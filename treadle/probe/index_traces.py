"""The workloads that a model of learned indexes is trained and validated on, each drawn from its number.

Families of keys that are validated on are never trained on. What is trained on varies more than families do: keys of
every second trace are moved, in their order, to where clusters of all sizes and a few huge keys put them.
"""

from __future__ import annotations

from typing import NamedTuple, get_args

import numpy as np

from treadle.planner.passes.index.configurations import GappedArray, grid
from treadle.planner.passes.index.families import drawn
from treadle.planner.passes.index.operations import Workload
from treadle.planner.passes.index.problem import DrawnWorkload, Family

HELD_OUT: tuple[Family, ...] = ("books", "osm", "fb")
"""After the datasets of the paper's evaluation (MAPLE, "Datasets and workloads")."""
LEARNED: tuple[Family, ...] = tuple(sorted(set(get_args(Family)) - set(HELD_OUT)))
VALIDATED_EVERY = 8
"""Every eighth trace is for validation."""
GAPPED, LOGS = 4, 12
"""Configurations of each kind that a trace is trained on."""
LEAST_BULK, MOST_BULK = 1 << 13, 1 << 19
LEAST_OPERATIONS, MOST_OPERATIONS = 1 << 14, 1 << 17
PURE = 0.3
"""Share of traces that only look up or only insert."""


class IndexTrace(NamedTuple):
    """A workload, and the places in the grid of the configurations that are to be measured on it."""

    number: int
    family: Family
    insert_share: float
    workload: Workload
    places: tuple[int, ...]


def trace_of(number: int, seed: int) -> IndexTrace:
    """Trace `number`; the same for the same seed."""
    random = np.random.default_rng([seed, number])
    validates = number % VALIDATED_EVERY == VALIDATED_EVERY - 1
    families, turn = HELD_OUT if validates else LEARNED, number // VALIDATED_EVERY
    family = families[(turn if validates else number - turn) % len(families)]
    insert_share = _insert_share(random)
    workload = drawn(
        DrawnWorkload(
            family=family,
            bulk=_between(random, LEAST_BULK, MOST_BULK),
            operations=_between(random, LEAST_OPERATIONS, MOST_OPERATIONS),
            insert_share=insert_share,
            skew=0.0 if random.random() < 0.5 else round(float(random.uniform(0, 1.4)), 3),
            seed=number,
        )
    )
    if validates:
        return IndexTrace(number, family, insert_share, workload, tuple(range(len(grid()))))
    if random.random() < 0.5:
        workload = moved(workload, random)
    return IndexTrace(number, family, insert_share, workload, _places(random))


def moved(workload: Workload, random: np.random.Generator) -> Workload:
    """The same operations on keys in the same order that lie elsewhere: distances are multiplied by random factors of
    parts of all sizes, and in one of two cases a few of the largest keys are moved far up."""
    operations = workload.operations
    keys = np.unique(np.concatenate([workload.keys, operations.keys]))
    if len(keys) < 2:
        return workload
    octaves = np.log2(np.diff(keys).astype(np.float64)) * random.uniform(0.3, 1.2)
    rough = random.uniform(0.2, 1.5)
    for level in range(4, 20, 2):
        parts = random.normal(0, rough, 1 << level)
        octaves += parts[np.arange(len(octaves)) * len(parts) // len(octaves)]
    gaps = np.exp2(np.clip(octaves - octaves.min(), 0, 60))
    gaps = np.maximum(gaps * min(1.0, 2.0**55 / gaps.sum()), 1.0)
    if random.random() < 0.5:
        far = int(random.integers(1, 1 + min(100, len(gaps))))
        gaps[-far:] += 2.0 ** random.uniform(50, 62) / far
    fresh = np.concatenate([np.zeros(1, np.uint64), np.cumsum(gaps.astype(np.uint64))])
    return workload._replace(
        keys=fresh[np.searchsorted(keys, workload.keys)],
        operations=operations._replace(keys=fresh[np.searchsorted(keys, operations.keys)]),
    )


def _insert_share(random: np.random.Generator) -> float:
    if random.random() < PURE:
        return float(random.integers(2))
    return round(float(random.random()), 3)


def _between(random: np.random.Generator, least: int, most: int) -> int:
    """A number whose logarithm is evenly distributed."""
    return int(np.exp(random.uniform(np.log(least), np.log(most))))


def _places(random: np.random.Generator) -> tuple[int, ...]:
    kinds = [isinstance(each, GappedArray) for each in grid()]
    gapped, logs = (np.flatnonzero([kind == wanted for kind in kinds]) for wanted in (True, False))
    chosen = (*random.choice(gapped, GAPPED, replace=False), *random.choice(logs, LOGS, replace=False))
    return tuple(int(each) for each in random.permutation(chosen))
