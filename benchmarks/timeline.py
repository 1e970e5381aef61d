"""Time to simulate 100,000 tasks.

exclusive: layered tasks, each after up to 3 earlier ones, on 1 to 3 of 64 links and ports, with memory.
shared: copies in both directions over 8 PCIe buses, each bus shared by what runs on it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from benchmarks.common import Table
from treadle.planner.timeline.simulator import Resource, Task, simulate

N = 100_000
TARGET_SECONDS = 2


def exclusive() -> tuple[list[Task], list[Resource]]:
    draw = random.Random(1)
    names = [f"link{k}" for k in range(64)]
    tasks = [
        Task(
            f"t{i}",
            draw.randint(1, 1000),
            tuple(draw.sample(names, draw.randint(1, 3))),
            tuple({draw.randrange(max(0, i - 500), i) for _ in range(draw.randint(0, 3))}) if i else (),
            alloc=(("hbm", 100),),
            free=(("hbm", 100),),
        )
        for i in range(N)
    ]
    return tasks, [Resource(name) for name in names]


def shared() -> tuple[list[Task], list[Resource]]:
    draw = random.Random(2)
    engines = [f"engine{k}{d}" for k in range(8) for d in ("in", "out")]
    tasks = [
        Task(f"t{i}", draw.randint(1, 1000), (engines[i % 16],), shares=((f"pcie{i % 16 // 2}", 12),)) for i in range(N)
    ]
    buses = [Resource(f"pcie{k}", shared=True, capacity=16) for k in range(8)]
    return tasks, [*(Resource(name) for name in engines), *buses]


def tables() -> Iterator[Table]:
    """Seconds to simulate 100,000 tasks (target: under 2 s)."""
    rows = []
    for case in (exclusive, shared):
        tasks, resources = case()
        began, worked = time.perf_counter(), time.process_time()
        span = simulate(tasks, resources).makespan
        seconds, cpu = time.perf_counter() - began, time.process_time() - worked
        rows.append({"resources": case.__name__, "tasks": N, "seconds": seconds, "CPU seconds": cpu, "span": span})
    yield Table("The timeline simulator", rows, (f"Target: under {TARGET_SECONDS} s each.",))
