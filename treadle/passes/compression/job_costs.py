"""What compressors and collectives cost on the processes of a job, whose exchange runs over gloo."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from treadle.host.source import source_digest
from treadle.job.kept import CostCache, machine
from treadle.planner.documents.compression_costs import CompressionCosts
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.trace import Trace
from treadle.planner.graph.gradients import ready

SOURCES = (
    "kernels/compression/*.*",
    "probe/call_timer.py",
    "probe/curve_fit.py",
    "probe/*compression*.py",
    "probe/routine_worker.py",
    "runtime/compression/routines.py",
)
"""What runs, what times it, and what is fitted to the times."""
SMALLEST, GROWTH = 1 << 10, 4
"""Bytes of the smallest gradients that are measured, and how many times as large the next ones are."""


class MeasuredCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was measured, and what makes it doubtful, empty where nothing does."""

    costs: CompressionCosts
    doubt: str


def measured_costs(
    trace: Trace, hardware: Hardware, compressors: Sequence[str], say: Callable[[str], None], cache: CostCache
) -> CompressionCosts:
    """Costs on as many processes as `hardware` has ranks, for gradients of up to all bytes of those of `trace`."""
    names, sizes = (
        tuple(sorted(set(compressors))),
        sizes_up_to(sum(gradient.bytes or 0 for _, gradient in ready(trace))),
    )
    world, node_ranks = hardware.ranks, hardware.devices_per_node

    def measure() -> MeasuredCosts:
        from treadle.probe.measure_compression import measure_compression

        say(f"measure compressors and collectives on {world} processes, once for this machine")
        found = measure_compression(names, sizes, world, "treadle plan job", node_ranks=node_ranks)
        assert found is not None
        return MeasuredCosts(found.costs, found.doubt)

    key = (*machine(world), f"{node_ranks} to a node", *names, str(sizes[-1]), source_digest(*SOURCES))
    found = cache.get(MeasuredCosts, key, measure)
    if found.doubt:
        say(f"  {found.doubt}; --fresh-costs measures again")
    return found.costs


def sizes_up_to(largest: int) -> tuple[int, ...]:
    """Bytes of gradients, the last one at least `largest`."""
    sizes = [SMALLEST]
    while sizes[-1] < largest:
        sizes.append(GROWTH * sizes[-1])
    return tuple(sizes)
