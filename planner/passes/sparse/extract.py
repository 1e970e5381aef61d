"""From recorded sparsity, a hardware profile and measured costs to a problem of sparse gradients.

m nodes of g devices are m g participants of the recording. A shard is one of g even ranges. All shards of a node share
its link, so their mean counts, of the fullest parts those of the node that owns the fullest part of any shard; the even
parts of a shard by n participants are n g even ranges of the gradient.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.sparse_costs import SparseCosts, SparseWork
from treadle.planner.documents.sparsity import Sparsity, TensorSparsity
from treadle.planner.errors import InputError
from treadle.planner.machine.gradient_links import inter_link, intra_link
from treadle.planner.passes.sparse.hashing import fullest_hashed
from treadle.planner.passes.sparse.problem import VERSION, BlockCounts, SparseGradient, SparseProblem
from treadle.planner.passes.sparse.recorded import Numbers, block_share, skewness, unions


def problem_of(sparsity: Sparsity, hardware: Hardware, costs: SparseCosts | None = None) -> SparseProblem:
    """The problem of the recorded gradients on all nodes of the profile; without costs, work takes no time.

    Raises InputError for unequal nodes, links without costs, and for gradients of which a recording of one participant
    cannot say what several have in common.
    """
    nodes, devices = hardware.nodes, hardware.devices_per_node
    return SparseProblem(
        version=VERSION,
        name=sparsity.name,
        machines=nodes,
        devices=devices,
        gradients=tuple(gradient_of(tensor, nodes, devices, sparsity.name) for tensor in sparsity.tensors),
        intra=intra_link(hardware) if devices > 1 else None,
        inter=inter_link(hardware) if nodes > 1 else None,
        work=SparseWork() if costs is None else costs.work,
    )


def gradient_of(tensor: TensorSparsity, machines: int, devices: int, where: str = "sparsity") -> SparseGradient:
    """The counts of one gradient for 1 to `machines` nodes. Raises InputError, which names `where`, for a recording of
    one participant where there are more."""
    ranks = machines * devices
    if ranks > 1 and len(tensor.unions) == 1:
        found = (
            f"found counts of one participant for {tensor.name}, expected those of several, which show what they have"
        )
        raise InputError(f"{found} in common", where=where, path="$.tensors")
    recorded = tuple(union.participants for union in tensor.unions)
    ask = np.arange(1, machines + 1) * devices
    shard, full = -(-tensor.units // devices), skewness(tensor, devices, ask) / devices
    means = unions(recorded, tuple(union.mean for union in tensor.unions), ask, tensor.units) / devices
    counts = _consistent(means, shard)
    most = unions(recorded, tuple(union.most for union in tensor.unions), ask[:1], tensor.units) * full[:1]
    # The owner of the fullest part has an even share of all other shards.
    part = skewness(tensor, ranks, ask) / ranks + (1 - full) / machines
    even = tuple(
        min(count, -(-shard // machines), max(-(-count // machines), round(count * share)))
        for count, share in zip(counts, part.tolist(), strict=True)
    )
    return SparseGradient(
        name=tensor.name,
        form=tensor.form,
        unit=tensor.unit,
        units=tensor.units,
        width=tensor.width,
        occurrences=max(tensor.occurrences, counts[0]),
        unions=counts,
        even=even,
        hashed=tuple(fullest_hashed(count, machines) for count in counts),
        densest=min(shard, max(counts[0], round(float(most[0])))),
        blocks=_blocks_of(tensor, machines, devices),
        extrapolated=ranks > recorded[-1],
    )


def _consistent(means: Numbers, units: int) -> tuple[int, ...]:
    """Whole counts that never fall, nor exceed `units` or what all participants have."""
    counts = list[int]()
    for participants, mean in enumerate(means.tolist(), 1):
        least = counts[-1] if counts else 0
        most = min(units, participants * counts[0]) if counts else units
        counts.append(min(most, max(least, round(mean))))
    return tuple(counts)


def _blocks_of(tensor: TensorSparsity, machines: int, devices: int) -> BlockCounts | None:
    """Counts of the recorded size of blocks that sends the fewest units; None without any."""
    ranks = machines * devices
    part = ceil(ceil(tensor.units / devices) / machines)
    found = []
    for size in sorted({each.block for each in tensor.blocks}):
        whole = -(-part // size)
        push, pull = (
            min(whole, round(block_share(tensor, size, ranks, participants) * whole))
            for participants in (devices, ranks)
        )
        found.append(BlockCounts(size=size, push=push, pull=max(push, pull)))
    return min(found, key=lambda each: ((each.push + each.pull) * each.size, -each.size), default=None)
