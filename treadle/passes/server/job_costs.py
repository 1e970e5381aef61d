"""What a server and its workers cost as processes of a job, which all run on this machine."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from treadle.host.numa import domain_cpus
from treadle.host.source import source_digest
from treadle.job.kept import CostCache, machine
from treadle.planner.documents.server_parts import Carrier, ServerParts
from treadle.planner.documents.trace import Trace
from treadle.planner.graph.gradients import ready

SOURCES = (
    "kernels/server/*.*",
    "probe/server_*.py",
    "runtime/server/wire/*.*",
    "runtime/wire/*.h",
    "runtime/server/engine.py",
    "runtime/server/client_library.py",
)
"""What runs, and what times it."""
LEAST, MOST = 1 << 20, 1 << 26
"""Bytes of the models that are measured."""


def measured_parts(
    parts: ServerParts,
    carrier: Carrier,
    trace: Trace,
    ranks: int,
    say: Callable[[str], None],
    cache: CostCache,
) -> ServerParts:
    """`parts` with the costs of a carrier on this machine, for gradients of about as many bytes as those of `trace`.
    Raises MissingBackendError without a compiler, CheckFailed when the compiled server does not start."""
    size = measured_size(sum(gradient.bytes or 0 for _, gradient in ready(trace)))

    def measure() -> ServerParts:
        from treadle.probe import server_rates
        from treadle.probe.server_carriers import carrier_costs

        say("measure a server and a worker, once for this machine")
        processors, elements = [each for domain in domain_cpus() for each in domain], size // 4
        memory = server_rates.memory_rates(processors, elements)
        add = server_rates.hot_add_us_per_MB(processors[0], elements)
        mean = server_rates.optimize_us_per_MB(processors[0], elements, ("mean",))
        costs, _ = carrier_costs(carrier, processors, add, mean["mean"], size)
        how = "measured: `treadle plan job`"
        return replace(
            parts,
            memory_GBps=memory.change_all / 1e9,
            optimize_us_per_MB=mean,
            costs={carrier: costs},
            sources={"memory_GBps": how, "optimize_us_per_MB": how, "costs": how},
        )

    found = cache.get(ServerParts, (*machine(ranks), carrier, str(size), source_digest(*SOURCES)), measure)
    return replace(
        parts,
        memory_GBps=found.memory_GBps,
        optimize_us_per_MB=found.optimize_us_per_MB,
        costs=found.costs,
        sources={**parts.sources, **found.sources},
    )


def measured_size(model: int) -> int:
    """A power of two, so that models of about one size share what was measured."""
    return min(MOST, max(LEAST, 1 << (model - 1).bit_length()))
