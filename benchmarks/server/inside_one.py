"""Engines, sums, chunks and carriers of a server whose workers run in the same process, next to predictions and to the
rate at which cores add arrays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from statistics import median
from typing import Any

from benchmarks.common import Row, Table, machine, progress
from benchmarks.server.inside import planned, step_seconds
from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.documents.server_parts import Carrier
from treadle.planner.passes.server.decided import ServerOptions
from treadle.planner.passes.server.problem import CoreWork, OptimizerName
from treadle.probe.server_carriers import carrier_costs
from treadle.probe.server_rates import hot_add_us_per_MB, memory_rates, optimize_us_per_MB

WORKERS, MODEL = 4, 16 * MEBIBYTE
CHUNKS = tuple(1 << size for size in range(12, 23, 2))
CARRIERS: tuple[Carrier, ...] = ("shared", "tcp")
CHUNK = 32 << 10
MANY, LARGE = 8, 256 << 10
"""Workers and chunk of what is compared with the rate of memory."""
TARGET, WITHIN = 0.7, 0.2


def tables() -> Iterator[Table]:
    """Tall and wide, cached and past the cache, sizes of chunks, rings and TCP, and the rate of adding arrays."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    progress("costs of cores")
    optimize = optimize_us_per_MB(cores[0])
    memory = memory_rates(cores)
    adds = {"shared": MEBIBYTE * 1e6 / memory.add_core, "tcp": hot_add_us_per_MB(cores[0])}
    work = {carrier: _work(carrier, cores, adds[carrier], optimize) for carrier in CARRIERS}
    progress("engines")
    rows = [_row(carrier, work[carrier], engine=engine, aggregator=kind)
            for carrier in CARRIERS for engine in ("tall", "wide") for kind in ("cached", "bypass")]  # fmt: skip
    title = f"{WORKERS} workers, 16 MiB, SGD with momentum, 2 cores for all"
    yield Table(f"Engines and sums: {title}", rows, (TOGETHER, machine()))
    progress("chunks")
    rows = [_row(carrier, work[carrier], chunk_bytes=size) for carrier in CARRIERS for size in CHUNKS]
    yield Table(f"Sizes of chunks: {title}", rows, (TOGETHER, machine()))
    progress("memory")
    rows = [_against(memory.add_all, values) for values in (False, True)]
    yield Table("Gradients added, against arrays added by 2 cores", rows, (BOUND, machine()))


TOGETHER = "predicted from costs of a core that were measured before; server and workers share the cores"
BOUND = (
    "bytes of gradients of 8 workers per second over rings, `mean`, the least step; the bound, also the least of its "
    "repeats, reads two arrays larger than caches and writes one; "
    f"target {TARGET:.0%} in one run. With values every worker also takes the result, which writes as much as was read"
)


def _work(carrier: Carrier, cores: list[int], add: float, optimize: dict[str, float]) -> CoreWork:
    costs, _ = carrier_costs(carrier, cores, add, optimize["mean"], MODEL)
    return CoreWork(
        receive_ns_per_MB=round(1000 * costs.receive_us_per_MB),
        add_ns_per_MB=round(1000 * costs.add_us_per_MB),
        optimize_ns_per_MB=round(1000 * optimize["sgd"]),
        send_ns_per_MB=round(1000 * costs.send_us_per_MB),
        message_ns=round(1000 * costs.message_us),
        worker_ns_per_MB=round(1000 * costs.worker_us_per_MB),
    )


def _row(carrier: Carrier, work: CoreWork, **options: Any) -> Row:
    chosen = ServerOptions(**{"chunk_bytes": CHUNK, **options})
    decisions = planned(WORKERS, MODEL, carrier=carrier, work=work, options=chosen).decisions
    measured, predicted = median(step_seconds(decisions)) * 1e3, decisions.time_ns / 1e6
    return {
        "carrier": carrier,
        "engine": chosen.engine,
        "sums": chosen.aggregator,
        "chunk KiB": decisions.chunk_bytes >> 10,
        "ms": measured,
        "GB/s": WORKERS * MODEL / measured / 1e6,
        "predicted ms": predicted,
        "bottleneck": max(decisions.parts, key=lambda part: part.time_ns).part,
        "predicted / measured": predicted / measured,
        "within 20 %": "yes" if abs(predicted / measured - 1) <= WITHIN else "MISSED",
    }


def _against(rate: float, values: bool) -> Row:
    optimizer: OptimizerName = "mean"
    decisions = planned(MANY, MODEL, optimizer=optimizer, options=ServerOptions(chunk_bytes=LARGE)).decisions
    ours = MANY * MODEL / min(step_seconds(decisions, values=values))
    return {
        "values to": "all workers" if values else "one worker",
        "GB/s": ours / 1e9,
        "arrays, GB/s": rate / 1e9,
        "share": ours / rate,
        "target": "yes" if ours / rate >= TARGET else "MISSED",
    }
