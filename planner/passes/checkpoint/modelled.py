"""An iteration of data-parallel training, of which a trace records one device's operators and no messages.

Gradients go in buckets, as PyTorch's DistributedDataParallel sends them: the first of 1 MiB, so that it starts early,
the others of 25 MiB. A message starts when its gradients are ready and the one before has ended.
"""

from __future__ import annotations

from collections.abc import Callable

from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.graph.ready_times import ready_times
from treadle.planner.machine.gradient_links import inter_link, intra_link
from treadle.planner.passes.checkpoint.spans import Iteration, Sending

FIRST_BUCKET, BUCKET = MEBIBYTE, 25 * MEBIBYTE
Exchange = Callable[[int], int]
"""ns of an allreduce by its bytes."""


def modelled(trace: Trace, exchange: Exchange) -> Iteration:
    """The iteration with its gradients exchanged. Raises InputError for a trace without gradients or times."""
    times = ready_times(trace)
    if not times.gradients:
        raise InputError("found no gradients of parameters, expected a trace of a training step", where=trace.name)
    sent, bucket, free = list[Sending](), 0, 0
    for place, (_, gradient, ready_ns) in enumerate(times.gradients, 1):
        bucket += gradient.bytes or 0
        if bucket and (bucket >= (BUCKET if sent else FIRST_BUCKET) or place == len(times.gradients)):
            start = max(free, ready_ns)
            free = start + exchange(bucket)
            sent.append(Sending("allreduce", start, free))
            bucket = 0
    update = max(times.compute_ns, free)
    return Iteration(tuple(sent), update, update + times.optimizer_ns)


def ring(hardware: Hardware) -> Exchange:
    """An allreduce along rings, within nodes and between them. Raises InputError for unequal nodes and links without
    costs."""
    nodes, devices = hardware.nodes, hardware.devices_per_node
    rings = [
        *([(devices, intra_link(hardware))] if devices > 1 else []),
        *([(nodes, inter_link(hardware))] if nodes > 1 else []),
    ]
    return lambda size: round(1000 * sum(_ring_us(count, link, size) for count, link in rings))


def _ring_us(count: int, link: GradientLink, size: int) -> float:
    return 2 * (count - 1) * (link.alpha_us + link.beta_us_per_MB * size / MEBIBYTE / count)
