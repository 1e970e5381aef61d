"""Programs on ports that serve messages first come first served, compared with the schedules they were lowered from.

Two ratios to the schedule's time, of the program with one instance on links and ports only: messages are served as the
threadblocks issue them ("free"), or wait for each other at their port ("in turn"). Then the simulated time of both with
the costs of threadblocks, in the protocol and instances that are best for the first. `auto` takes the smaller one.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from benchmarks.common import Row, Table, progress
from treadle.passes.collective.tuning import links_us, time_in_turn, tuner
from treadle.planner.documents.collective import Collective
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.passes.collective.planning import CollectiveOptions, make_request, plan_collective
from treadle.planner.passes.collective.sketching import propose
from treadle.probe.resolve import load_hardware

MACHINES = (("dgx2", 2), ("ndv2", 2), ("ndv5", 1), ("dgx1", 1), ("cluster-25gbe", 4))
COLLECTIVES: tuple[Collective, ...] = ("allgather", "allreduce", "alltoall")
METHODS = ("greedy", "hierarchical")
SIZE = 2**20


def tables() -> Iterator[Table]:
    """Two methods on machines with NVSwitches, shared NICs and plain links."""
    rows = [
        row(name, nodes, collective, method)
        for name, nodes in MACHINES
        for collective in COLLECTIVES
        for method in METHODS
    ]
    yield Table(f"first come first served, {format_bytes(SIZE)} of input on every rank", rows)


def row(name: str, nodes: int, collective: Collective, method: str) -> Row:
    """One schedule and its two programs."""
    progress(f"order: {collective} on {nodes} {name} by {method}")
    hardware = load_hardware(name, nodes)
    sketch = propose(hardware, collective=collective, size_bytes=SIZE)
    decisions = plan_collective(
        make_request(collective, hardware, sketch, SIZE), options=CollectiveOptions(method=method)
    ).decisions
    one = replace(decisions, instances=1, protocol="Simple")
    schedule = one.makespan_ns / 1000
    in_turn = time_in_turn(one, links_us)
    found = tuner(decisions, hardware, None, None)
    assert not isinstance(found, str)
    key = found.chosen(SIZE)
    return {
        "machine": f"{nodes} x {name}",
        "collective": collective,
        "method": method,
        "schedule us": schedule,
        "free": links_us(one) / schedule,
        "in turn": "-" if in_turn is None else in_turn / schedule,
        "simulated us free": found.time_us(key, SIZE),
        "simulated us in turn": "-" if in_turn is None else found.in_turn_us(key, SIZE) or "-",
    }
