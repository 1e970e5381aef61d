"""Small problems of serving parameters, and their decisions."""

from __future__ import annotations

from functools import cache
from typing import Any

from msgspec.structs import replace

from tests.planner.passes.server.pbox import PRICES
from treadle.planner.passes.server.decided import ServerOptions, best_of, decisions_of
from treadle.planner.passes.server.decisions import ServerDecisions
from treadle.planner.passes.server.keys import ServerKey
from treadle.planner.passes.server.problem import (
    VERSION,
    CoreWork,
    MachineInterface,
    ServerMachine,
    ServerProblem,
)

MACHINE = ServerMachine(
    name="four cards",
    domains=(4, 4),
    interfaces=tuple(
        MachineInterface(name=f"eth{number}", domain=number // 2, rate=1_000_000_000, slot_rate=1_500_000_000)
        for number in range(4)
    ),
    memory_bytes=1 << 30,
    memory_rate=20_000_000_000,
    bridge_rate=6_000_000_000,
    between_rate=5_000_000_000,
    work=CoreWork(
        receive_ns_per_MB=100_000,
        add_ns_per_MB=80_000,
        optimize_ns_per_MB=150_000,
        send_ns_per_MB=90_000,
        message_ns=500,
        worker_ns_per_MB=200_000,
    ),
)
RACK_PRICES = replace(PRICES, name="a rack", workers_per_server=65, oversubscription=2, served_throughput=101.0)
PROBLEM = ServerProblem(
    version=VERSION,
    name="three layers",
    keys=(
        ServerKey(name="head", elements=26_000, ready_ns=100_000),
        ServerKey(name="body", elements=50_000, dtype="float16", ready_ns=400_000),
        ServerKey(name="stem", elements=10_001, ready_ns=900_000),
    ),
    compute_ns=1_000_000,
    workers=6,
    worker_rate=1_000_000_000,
    mode="ncc",
    machine=MACHINE,
    carrier="tcp",
    optimizer="nesterov",
    latency_ns=20_000,
    prices=RACK_PRICES,
)
RACKS = replace(PROBLEM, name="two racks", racks=2, servers=2, core_rate=500_000_000)
SHARDS = replace(PROBLEM, name="a shard on each", mode="cs", servers=6)
LAB = replace(PROBLEM, name="in memory of one host", carrier="shared", worker_rate=None, shared_cores=2, latency_ns=0)


@cache
def decided(problem: ServerProblem = PROBLEM, **options: Any) -> ServerDecisions:
    """The planner's decisions, in chunks of 32 KiB where the options say nothing else."""
    given = ServerOptions(**{"chunk_bytes": 32768, **options})
    return decisions_of(best_of(problem, given), given)


def two_levels() -> ServerDecisions:
    return decided(RACKS, levels="two-level")


def by_worker(problem: ServerProblem = PROBLEM) -> ServerDecisions:
    return decided(problem, policy="worker-by-interface")
