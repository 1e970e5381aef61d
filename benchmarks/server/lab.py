"""A server with one interface and with one for each worker between hosts of a lab, next to an allreduce of gloo with a
local optimizer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.common import Row, Table, machine, progress
from benchmarks.sparse.lab import on_hosts
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.passes.server.decided import ServerOptions
from treadle.planner.passes.server.decisions import ServerDecisions
from treadle.planner.passes.server.keys import ServerKey
from treadle.planner.passes.server.planning import plan_server
from treadle.planner.passes.server.problem import VERSION, MachineInterface, ServerMachine, ServerProblem

HOSTS = (4, 8)
RATE = 50e6
"""Bits per second of a worker's link, and of each interface of the server; two cores carry the server's 800 Mbit/s."""
MODEL, KEYS, CHUNK = 4 * MEBIBYTE, 8, 32 << 10
SECONDS, WITHIN = 12.0, 0.2
PROFILE = """kind: hardware
version: 1
name: hosts
nodes: {workers}
devices:
  - {{model: a process on a CPU, kind: cpu, count: 1}}
nics: [{nics}]
network: {{kind: ethernet, alpha_us: 30, beta_us_per_MB: {beta:.0f}}}
{server}sources: {{nodes: "by definition", network: "the lab's"}}
"""


def tables() -> Iterator[Table]:
    """A server with one interface and with several, and gloo, between 4 and 8 hosts of a lab with shaped links."""
    for workers in HOSTS:
        rows = list(compared(workers))
        yield Table(
            f"{workers} workers, {RATE / 1e6:g} Mbit/s a link, 4 MiB of gradients: ms of a step", rows, (HOW, machine())
        )


HOW = (
    "medians of the first worker; a server's interface carries what a worker's link does, and with several a worker's "
    "link is cut into as many lanes, one to each; gloo: allreduce of one message, then the same optimizer"
)


def compared(workers: int) -> Iterator[Row]:
    """The server with one interface, with one for each worker, and gloo."""
    with TemporaryDirectory() as folder:
        progress(f"{workers} workers: gloo")
        alone = Path(folder) / "gloo.yaml"
        alone.write_text(profile(workers, 1, server=False))
        expected = 2 * (workers - 1) / workers * MODEL * 8 / RATE
        command = ["benchmarks.server.lab_host", "gloo", str(MODEL // 4), str(steps(expected))]
        gloo = median(json.loads(on_hosts(alone, command).splitlines()[-1])) * 1e3
        yield row("gloo, ring", gloo, expected * 1e3, "worker link", gloo)
        for interfaces in (1, workers):
            progress(f"{workers} workers: server with {interfaces}")
            plan = planned(workers, interfaces)
            measured = served(plan, workers, interfaces, Path(folder)) * 1e3
            slowest = max(plan.decisions.parts, key=lambda part: part.time_ns).part
            name = f"server, {interfaces} interface{'s' if interfaces > 1 else ''}"
            yield row(name, measured, plan.decisions.time_ns / 1e6, slowest, gloo)


def row(name: str, measured: float, predicted: float, bottleneck: str, gloo: float) -> Row:
    return {
        "exchange": name,
        "ms": measured,
        "predicted ms": predicted,
        "bottleneck": bottleneck,
        "predicted / measured": predicted / measured,
        "within 20 %": "yes" if abs(predicted / measured - 1) <= WITHIN else "MISSED",
        "x gloo": gloo / measured,
    }


def planned(workers: int, interfaces: int) -> Plan[ServerDecisions]:
    """The plan for a server of as many interfaces, each with a core."""
    rate = round(RATE / 8)
    problem = ServerProblem(
        version=VERSION,
        name="lab",
        keys=tuple(ServerKey(name=f"key{number}", elements=MODEL // 4 // KEYS) for number in range(KEYS)),
        workers=workers,
        worker_rate=rate,
        mode="ncc",
        machine=ServerMachine(
            name="host of the lab",
            domains=(interfaces,),
            interfaces=tuple(
                MachineInterface(name=f"eth{number}", domain=0, rate=rate) for number in range(interfaces)
            ),
        ),
        carrier="tcp",
        optimizer="nesterov",
        latency_ns=30_000,
    )
    return plan_server(problem, options=ServerOptions(chunk_bytes=CHUNK, policy="key-by-interface"))


def served(plan: Plan[ServerDecisions], workers: int, interfaces: int, folder: Path) -> float:
    """Seconds of a step with the server on a host of its own."""
    hardware, file, access = folder / "hosts.yaml", folder / "lab.plan.json", folder / f"access-{interfaces}.json"
    hardware.write_text(profile(workers, interfaces, server=True))
    store.save(plan, file)
    count = steps(plan.decisions.time_ns / 1e9)
    printed = on_hosts(hardware, ["benchmarks.server.lab_host", "served", str(file), str(access), str(count)])
    return median(json.loads(printed.splitlines()[-1]))


def steps(seconds: float) -> int:
    return max(3, min(20, int(SECONDS / seconds)))


def profile(workers: int, interfaces: int, *, server: bool) -> str:
    """Workers with a link in as many lanes, and a last host whose interfaces are whole."""

    def nics(gbps: float) -> str:
        return ", ".join(f"{{name: eth{n}, devices: [0], speed_gbps: {gbps:.9g}}}" for n in range(interfaces))

    last = f"other_nodes:\n  - nics: [{nics(RATE / 1e9)}]\n" if server else ""
    beta = 8 * MEBIBYTE * 1e6 / (RATE if server else RATE / interfaces)
    return PROFILE.format(workers=workers, nics=nics(RATE / 1e9 / interfaces), beta=beta, server=last)
