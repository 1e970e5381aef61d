"""Collective plans compared with standard schedules on the same machine, all under one alpha-beta model with ports.

The peers are treadle's own templates (ring, two-level, double tree, binomial tree, halving-doubling). Each may use
every link of the profile; one list scheduler sets all times, and one checker accepts all plans.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.common import Row, Table, progress
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.collective import Collective
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.documents.sketch import Sketch
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.planning import METHODS, CollectiveOptions, make_request, plan_collective
from treadle.planner.passes.collective.synthesis import Request
from treadle.probe.resolve import load_hardware

CASES = (("ndv2", "ndv2-sk-1"), ("dgx2", "dgx2-sk-1"), ("dgx2", "dgx2-sk-2"))
NODES = 2
SIZES = (2**10, 2**15, 2**20, 2**26)
COLLECTIVES: tuple[Collective, ...] = ("allgather", "allreduce")
PEERS = ("ring", "two-level", "double-tree", "binomial", "halving-doubling")
TACCL_SECONDS = {
    ("allgather", "dgx2-sk-1"): 35.8,
    ("allgather", "dgx2-sk-2"): 11.3,
    ("allgather", "ndv2-sk-1"): 2.6,
    ("allreduce", "dgx2-sk-1"): 6.1,
    ("allreduce", "dgx2-sk-2"): 127.8,
    ("allreduce", "ndv2-sk-1"): 0.3,
}
"""Synthesis seconds at one size each: TACCL, Table 5.3."""


def tables() -> Iterator[Table]:
    """Allgather and allreduce on two NDv2 and two DGX-2, compared with ring, two-level and tree schedules."""
    for collective in COLLECTIVES:
        found = {(name, size): peers(collective, name, size) for name, _ in CASES for size in SIZES}
        rows = [planned(collective, name, sketch, size, found[name, size]) for name, sketch in CASES for size in SIZES]
        note = "TACCL s: its synthesis seconds (Table 5.3), at one size, on another machine with Gurobi."
        yield Table(f"{collective}, two nodes, size of one rank's input", rows, (note,))


def peers(collective: Collective, name: str, size: int) -> dict[str, float]:
    """Time of each template that the machine and the collective allow, us."""
    progress(f"quality: {collective} on {name}, {format_bytes(size)}: peers")
    every_link = store.load(resources.locate("sketches", "ring"), Sketch)
    request = Request(collective, load_hardware(name, NODES), every_link, size)
    found = {}
    for peer in PEERS:
        try:
            found[peer] = METHODS[peer](request, Effort()).makespan_ns / 1000
        except InputError:
            continue
    return found


def planned(collective: Collective, name: str, sketch: str, size: int, others: dict[str, float]) -> Row:
    """One plan, its certificate and its ratios."""
    progress(f"quality: {collective} with {sketch}, {format_bytes(size)}")
    guide = store.load(resources.locate("sketches", sketch), Sketch)
    start = time.perf_counter()
    plan = plan_collective(
        make_request(collective, load_hardware(name, NODES), guide, size), options=CollectiveOptions(method="auto")
    )
    seconds = time.perf_counter() - start
    time_us = plan.prediction.time_us
    best = min(others, key=lambda peer: others[peer])
    return {
        "sketch": sketch,
        "size": format_bytes(size),
        "method": plan.provenance.options["chosen"],
        "planned us": time_us,
        "bound us": plan.certificate.lower_bound / 1000,
        "gap %": 100 * plan.certificate.gap,
        "ring us": others["ring"],
        "best peer": best,
        "best peer us": others[best],
        "ring / planned": others["ring"] / time_us,
        "best peer / planned": others[best] / time_us,
        "synthesis s": seconds,
        "TACCL s": TACCL_SECONDS[collective, sketch],
    }
