"""Measure what this machine is worth as a parameter server: its parts, as plans of the pass `server` take them.

The bridge between cards and memory is not measured: only a loop over all cards at once shows what it carries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import psutil

from treadle.host.numa import domain_cpus, has_libnuma
from treadle.planner.documents.scalars import MEBIBYTE, many
from treadle.planner.documents.server_parts import (
    VERSION,
    Carrier,
    ServerCosts,
    ServerDomain,
    ServerInterface,
    ServerParts,
)
from treadle.probe import server_rates
from treadle.probe.local import cpu_model
from treadle.probe.server_carriers import LARGE, carrier_costs
from treadle.probe.server_network import interfaces
from treadle.probe.server_rates import ELEMENTS, MemoryRates, TallRate

GB = 10**9
TALL_SIZES = (4 << 10, 32 << 10, 256 << 10, 4 << 20)
"""Bytes of a chunk."""
ADD_TRAFFIC = 3
"""Bytes of memory that move for a byte added: a += b reads both and writes one."""
OnStep = Callable[[str], None]


class RateCheck(NamedTuple):
    """A rate in bytes per second as measured, and what a plan makes of the parts."""

    what: str
    measured: float
    planned: float | None = None


class MeasuredServer(NamedTuple):
    """The parts, what they were made from, and what could not be found out."""

    parts: ServerParts
    rates: tuple[RateCheck, ...]
    tall: tuple[TallRate, ...]
    notes: tuple[str, ...]


def measure_server(command: str, *, elements: int = ELEMENTS, on_step: OnStep = lambda text: None) -> MeasuredServer:
    """Measure with all cores that this process may use, by arrays of `elements` float32.

    Raises MissingBackendError without a compiler, CheckFailed when the compiled server does not start.
    """

    domains = domain_cpus()
    processors = [each for domain in domains for each in domain]
    first = processors[0]
    memory = server_rates.memory_rates(processors, elements)
    on_step("memory")
    tall = tuple(server_rates.tall_rates(first, TALL_SIZES, elements=elements, repeats=3))
    on_step("sums of chunks")
    optimizers = server_rates.optimize_us_per_MB(first, elements)
    on_step("optimizers")
    adds = {"tcp": server_rates.hot_add_us_per_MB(first, elements), "shared": _us_per_MB(memory.add_core)}
    costs: dict[Carrier, ServerCosts] = {}
    reached: dict[Carrier, float] = {}
    carriers: tuple[Carrier, ...] = ("tcp", "shared")
    for carrier in carriers:
        costs[carrier], reached[carrier] = carrier_costs(
            carrier, processors, adds[carrier], optimizers["mean"], 2 * elements
        )
        on_step(f"the carrier {carrier}")
    cards, silent = interfaces(len(domains))
    notes = [f"{name} does not state its speed and is left out" for name in silent]
    if not cards:
        cards = [ServerInterface(name="lo", link_gbps=_digits(8 * reached["tcp"] / GB), address="127.0.0.1")]
        notes.append("no card states its speed, so the parts have loopback, at the rate of one worker")
    if not has_libnuma():
        notes.append("libnuma is not there, so all cores count as one domain")
    notes.append("the bridge between cards and memory is not measured; it may carry less than cards and memory do")
    parts = ServerParts(
        version=VERSION,
        name=cpu_model(),
        domains=tuple(ServerDomain(cores=len(domain)) for domain in domains),
        interfaces=tuple(cards),
        memory_bytes=psutil.virtual_memory().total,
        memory_GBps=_digits(memory.change_all / GB),
        optimize_us_per_MB=optimizers,
        costs=costs,
        sources=_sources(command, len(processors), bool(silent or cards[0].name == "lo")),
    )
    return MeasuredServer(parts, tuple(_rates(memory, reached, parts, len(processors))), tall, tuple(notes))


def _rates(memory: MemoryRates, reached: Mapping[Carrier, float], parts: ServerParts, cores: int) -> list[RateCheck]:
    """Each with what plans expect: for adds by a core's time and the rate of memory, for exchanges by both ends."""
    core = MEBIBYTE * 1e6 / parts.costs["shared"].add_us_per_MB
    assert parts.memory_GBps is not None
    limit = parts.memory_GBps * GB / ADD_TRAFFIC
    return [
        RateCheck("a += b, a core", memory.add_core, core),
        RateCheck(f"a += b, {many(cores, 'core')}", memory.add_all, min(cores * core, limit)),
        RateCheck("read and written, a core", memory.change_core),
        RateCheck(f"read and written, {many(cores, 'core')}", memory.change_all, parts.memory_GBps * GB),
        *(
            RateCheck(f"pushed and pulled over {carrier}, a worker and a core", rate, _exchange(parts, carrier, cores))
            for carrier, rate in reached.items()
        ),
    ]


def _exchange(parts: ServerParts, carrier: Carrier, cores: int) -> float:
    """What a plan expects of one worker and one core, on processors of their own where there are two."""
    costs, chunks = parts.costs[carrier], MEBIBYTE / LARGE
    core = costs.receive_us_per_MB + costs.add_us_per_MB + costs.send_us_per_MB + parts.optimize_us_per_MB["mean"]
    ends = core + costs.message_us * chunks, costs.worker_us_per_MB
    return MEBIBYTE * 1e6 / (max(ends) if cores > 1 else sum(ends))


def _sources(command: str, cores: int, loopback: bool) -> dict[str, str]:
    how = f"measured: `{command}`, the least of repeats; {cpu_model()}, {many(cores, 'core')}"
    cards = "read from the operating system: speed, address, slot, and the share of a packet that is data"
    return {
        "domains": "read by libnuma" if has_libnuma() else "libnuma is not there: one domain",
        "interfaces": f"{how}, a worker over loopback" if loopback else cards,
        "memory_bytes": "read from the operating system",
        "memory_GBps": f"{how}, all of them change 128 MiB in place",
        "cached_extra": "Parameter Hub: a Rack-Scale Parameter Server for Distributed Deep Neural Network Training, "
        "table 6.2",
        "optimize_us_per_MB": f"{how}, one thread, chunks of 32 KiB whose weights and states come from memory",
        "costs": f"{how}, a worker and a core of the server that share a processor, chunks of 256 and 16 KiB",
        "costs.shared.add_us_per_MB": f"{how}, a += b of 64 MiB",
        "costs.tcp.add_us_per_MB": f"{how}, of gradients in the core's cache",
    }


def _us_per_MB(rate: float) -> float:
    return _digits(MEBIBYTE * 1e6 / rate)


def _digits(value: float) -> float:
    return float(f"{value:.4g}")
