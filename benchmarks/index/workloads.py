"""Workloads that are not drawn at random."""

from __future__ import annotations

import numpy as np

from benchmarks.index.sizes import Size
from treadle.planner.passes.index.families import workload_of
from treadle.planner.passes.index.operations import INSERT, LOOKUP, Workload
from treadle.planner.passes.index.problem import Family


def inserts_then_lookups(family: Family, size: Size, seed: int = 1) -> Workload:
    """Half of the operations insert, then half look up: latency of both in two windows."""
    ops = np.repeat(np.array([INSERT, LOOKUP], np.uint8), size.operations // 2)
    return workload_of(family, size.bulk, ops, seed)
