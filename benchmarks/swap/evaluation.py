"""Time to plan and simulate one order and pool, the step that the search repeats.

The problem is a training step of an LSTM of 8 layers and 180 steps (benchmarks.swap.recurrent). Times are processor
time, which other load does not change.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from random import Random

from benchmarks.common import Row, Table
from benchmarks.swap.recurrent import lstm
from treadle.planner.passes.swap.arrays import Arrays, arrays_of
from treadle.planner.passes.swap.evaluate import decisions, time_ns
from treadle.planner.passes.swap.layout import Pool, floors, needs
from treadle.planner.passes.swap.problem import SwapProblem
from treadle.planner.passes.swap.replay import replay
from treadle.planner.passes.swap.timeline_of import tasks_of
from treadle.planner.passes.swap.two_pass import plan_pool
from treadle.planner.search.compiled import COMPILES
from treadle.planner.timeline.simulator import simulate

TARGET_MS = 10
SIZES = (15, 40, 80)
"""Memory for tensors, half of it for weights, GiB."""
ONCE = """
import time
began = time.process_time()
from benchmarks.swap.evaluation import pool
from benchmarks.swap.recurrent import lstm
from treadle.planner.passes.swap.arrays import arrays_of
from treadle.planner.passes.swap.evaluate import time_ns
from treadle.planner.passes.swap.two_pass import plan_pool
arrays = arrays_of(lstm())
order, cut = range(len(arrays.time)), pool(arrays, 15)
loaded = time.process_time()
time_ns(arrays, plan_pool(arrays, order, cut))
first = time.process_time()
time_ns(arrays, plan_pool(arrays, order, cut))
print(first - loaded, time.process_time() - first)
"""


def tables() -> Iterator[Table]:
    """Milliseconds to plan and simulate 8,656 operators (target: under 10 ms for 10,000 nodes)."""
    step = lstm()
    arrays = arrays_of(step)
    given = list(range(len(step.ops)))
    rows: list[Row] = []
    for name, order in (("layer by layer", given), ("random", shuffled(arrays, 1))):
        for gibibytes in SIZES:
            rows.append(_row(step, arrays, name, order, gibibytes))
    yield Table("One evaluation of the swap search", rows, (f"Target: under {TARGET_MS} ms per 10,000 nodes.",))
    yield _starts()


def pool(arrays: Arrays, gibibytes: int) -> Pool:
    """One class per size: its floor, and half of the rest for the largest size or a quarter for each other."""
    classes = (1, 2, 3)
    least = floors(needs(arrays), classes)
    sizes = arrays.sizes.tolist()
    rest = gibibytes * 2**30 - sum(floor * size for floor, size in zip(least, sizes, strict=True))
    return Pool(
        classes,
        tuple(floor + rest // share // size for floor, share, size in zip(least, (4, 4, 2), sizes, strict=True)),
    )


def shuffled(arrays: Arrays, seed: int) -> list[int]:
    """A random topological order."""
    draw = Random(seed)
    waiting = (arrays.pred_ptr[1:] - arrays.pred_ptr[:-1]).tolist()
    ready = [op for op, count in enumerate(waiting) if not count]
    order: list[int] = []
    while ready:
        at = draw.randrange(len(ready))
        ready[at], ready[-1] = ready[-1], ready[at]
        order.append(ready.pop())
        for follower in arrays.succ[arrays.succ_ptr[order[-1]] : arrays.succ_ptr[order[-1] + 1]].tolist():
            waiting[follower] -= 1
            if not waiting[follower]:
                ready.append(follower)
    return order


def _row(step: SwapProblem, arrays: Arrays, name: str, order: list[int], gibibytes: int) -> Row:
    cut = pool(arrays, gibibytes)
    nodes = plan_pool(arrays, order, cut)
    assert nodes is not None
    tasks, resources = tasks_of(decisions(step, arrays, order, nodes, cut))
    took, replayed = _best(lambda: time_ns(arrays, plan_pool(arrays, order, cut))), _best(lambda: replay(arrays, nodes))
    found = replay(arrays, nodes)
    simulated = _best(lambda: simulate(tasks, resources), 2)
    return {
        "order": name,
        "GiB": gibibytes,
        "nodes": len(nodes.kind),
        "ms": took * 1e3,
        "ms per 10,000": took * 1e7 / len(nodes.kind),
        "of it simulation ms": replayed * 1e3,
        "treadle.planner.timeline.simulator ms": simulated * 1e3,
        "ratio": simulated / replayed,
        "step s": found.makespan_ns / 1e9,
    }


def _best(call: Callable[[], object], times: int = 9) -> float:
    call()
    taken = []
    for _ in range(times):
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
    return min(taken)


def _starts() -> Table:
    """The first call in a new process, and the next, with and without compilation."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        cases = [
            ("compiled, no cache yet", {}),
            ("compiled, from the cache", {}),
            ("as it stands", {"NUMBA_DISABLE_JIT": "1"}),
        ]
        for name, extra in cases if COMPILES else cases[2:]:
            run = subprocess.run(
                [sys.executable, "-c", ONCE],
                env={**os.environ, "NUMBA_CACHE_DIR": folder, **extra},
                capture_output=True,
                text=True,
                check=True,
            )
            first, then = map(float, run.stdout.split())
            rows.append({"loops": name, "first call s": first, "next call ms": then * 1e3})
    return Table("The same evaluation (15 GiB, layer by layer) in a new process", rows)
