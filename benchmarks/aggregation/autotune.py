"""A link slowed in mid-run between hosts of a lab: noticed, planned around, and what that is worth."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.aggregation.iterations import WAYS
from benchmarks.aggregation.slow_link import set_rate
from benchmarks.common import Row, Table, machine, progress
from treadle.lab.layout import LabLayout, layout
from treadle.lab.lifecycle import the_lab
from treadle.lab.run import run
from treadle.lab.state import Lab
from treadle.planner.documents import store
from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.passes.aggregation.planning import AggregationOptions, plan_aggregation
from treadle.planner.passes.aggregation.problem import AggregatingHost, AggregationProblem
from treadle.probe.resolve import load_hardware

PROFILE, SCALE, BYTES, CHUNK_BYTES = "racks-2x4", 200, 1 << 20, 32 << 10
ITERATIONS, SLOWED_AT, LIFTED_AT = 65, 15, 45
SLOW_HOST, SLOWER = 3, 4
WITHIN = 20
"""Iterations after the change in which it is to be planned around."""


def tables() -> Iterator[Table]:
    """One of 8 hosts slowed to a quarter in mid-run: Autotune, the plan left as it was, and gloo."""
    where = layout(load_hardware(PROFILE), SCALE)
    found = {}
    with TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        store.save(plan_aggregation(_problem(where), options=AggregationOptions(levels=2)), plan)
        for way in WAYS:
            progress(f"autotune: {way}")
            found[way] = _measured(where, way, plan)
    yield _phases(found)
    yield _trace(found["autotune"])


def _problem(where: LabLayout) -> AggregationProblem:
    """What a probe finds on these racks while all hosts send to others: a NIC inside, a share of the uplink between."""
    count = len(where.hosts)
    nic = 8 * MEBIBYTE * 1e9 / where.hosts[0].interfaces[0].bits_per_second

    def cost(i: int, j: int) -> int:
        return 0 if i == j else round(nic * (1 if where.hosts[i].bridge == where.hosts[j].bridge else 4))

    latency = round(where.latency_us * 1000)
    return AggregationProblem(
        version=1,
        hosts=tuple(AggregatingHost(name=host.name) for host in where.hosts),
        latency_ns=tuple(tuple(0 if i == j else latency for j in range(count)) for i in range(count)),
        ns_per_MiB=tuple(tuple(cost(i, j) for j in range(count)) for i in range(count)),
        size_bytes=BYTES,
        chunk_bytes=CHUNK_BYTES,
    )


def _measured(where: LabLayout, way: str, plan: Path) -> dict[str, Any]:
    """ms of each iteration and what was said, with the iteration after which it was."""
    times: list[float] = []
    said: list[tuple[int, str]] = []
    versions: list[int] = []
    errors: list[str] = []
    rate = where.hosts[SLOW_HOST].interfaces[0].bits_per_second
    changes = {SLOWED_AT: rate // SLOWER, LIFTED_AT: rate}

    def show(lab: Lab, name: str, is_error: bool, line: bytes) -> None:
        if is_error:
            errors.append(f"{name}: {line.decode()}")
            return
        record = json.loads(line)
        if "ms" in record:
            times.append(record["ms"])
            if len(times) in changes:
                set_rate(lab, SLOW_HOST, changes[len(times)])
        elif "said" in record:
            said.append((len(times), record["said"]))
        else:
            versions.extend(record["versions"])

    words = ["benchmarks.aggregation.iterations", way, str(plan), str(BYTES // 4), str(ITERATIONS)]
    command = [sys.executable, "-m", *words]
    try:
        with the_lab(where) as lab:
            run(lab, command, partial(show, lab))
    except Exception as error:
        raise SystemExit("\n".join([str(error), *errors[-20:]])) from error
    return {"ms": times, "said": said, "versions": versions}


def _phases(found: dict[str, Any]) -> Table:
    rows: list[Row] = []
    for way, each in found.items():
        before, slowed, lifted = (
            each["ms"][5:SLOWED_AT],
            each["ms"][SLOWED_AT + WITHIN : LIFTED_AT],
            each["ms"][LIFTED_AT + (ITERATIONS - LIFTED_AT) // 2 :],
        )
        rows.append(
            {
                "sums by": way,
                "before ms": median(before),
                f"slowed, after {WITHIN} iterations ms": median(slowed),
                "lifted ms": median(lifted),
            }
        )
    tuned, fixed, gloo = (row[f"slowed, after {WITHIN} iterations ms"] for row in rows)
    notes = (
        f"{PROFILE} at --scale {SCALE}, {BYTES / MEBIBYTE:g} MiB a sum, all sums exact; the link of node{SLOW_HOST} "
        f"carries 1/{SLOWER} from iteration {SLOWED_AT} to {LIFTED_AT}",
        f"while it is slow Autotune is {fixed / tuned:.2f}x as fast as the plan left as it was, {gloo / tuned:.2f}x as "
        f"fast as gloo",
        machine(),
    )
    return Table("a link slowed in mid-run: medians of an iteration", rows, notes)


def _trace(found: dict[str, Any]) -> Table:
    """The decisions, with the times around them."""
    ends = [*found["versions"][1:], len(found["ms"])]
    rows: list[Row] = [
        {"from iteration": first, "median ms": median(found["ms"][first:end])}
        for first, end in zip(found["versions"], ends, strict=True)
        if end > first
    ]
    return Table("Autotune: plans", rows, tuple(text for _, text in found["said"]))
