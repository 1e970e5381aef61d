"""From a hardware profile to the axes of a mesh of workers, and what moving bytes along each of them costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.errors import InputError
from treadle.planner.machine.gradient_links import inter_link, intra_link
from treadle.planner.passes.tiling.problem import AxisTransfer, MeshAxis, TransferCost

LEAST_BETA = 1e-6
"""us per MiB along an axis of one worker, where nothing is moved."""
Alltoall = Literal["direct", "gathered"]


def mesh_axes(
    sizes: Sequence[int],
    hardware: Hardware | None = None,
    *,
    planned: Mapping[str, Sequence[TransferCost]] | None = None,
) -> tuple[MeshAxis, ...]:
    """Axes named x0, x1, ... of these sizes; the workers are numbered row by row, so the last axis has neighbours.

    Without hardware they have no costs, which only the model `time` needs. `planned` has costs of axes by name that
    take the place of the modelled ones. Raises InputError for a mesh that the hardware has no ranks for.
    """
    if hardware is not None and math.prod(sizes) > hardware.ranks:
        found = (
            f"found a mesh of {math.prod(sizes)} workers, expected at most the {hardware.ranks} ranks of the profile"
        )
        raise InputError(found, where=hardware.name)
    on_cpu = hardware is not None and all(device.kind == "cpu" for device in hardware.devices)
    alltoall: Alltoall = "gathered" if on_cpu else "direct"  # DTensor on gloo gathers
    axes = []
    for place, size in enumerate(sizes):
        apart = math.prod(sizes[place + 1 :])
        costs = _costs(size, _link(hardware, size, apart), alltoall) if hardware is not None else ()
        name = f"x{place}"
        given = {each.transfer: each for each in (planned or {}).get(name, ())}
        chosen = tuple(given.get(cost.transfer, cost) for cost in costs)
        axes.append(MeshAxis(name=name, size=size, costs=chosen, alltoall=alltoall))
    return tuple(axes)


def _link(hardware: Hardware, size: int, apart: int) -> GradientLink:
    """What a worker has of the link to the next one along an axis of `size` workers whose numbers are `apart`: that
    inside a node where all of them are in one, else its share of the node's NICs, which all groups along the axis that
    pass through the node use at once."""
    if size == 1:
        return GradientLink(beta_us_per_MB=LEAST_BETA)
    per_node = hardware.devices_per_node
    if per_node % (size * apart) == 0:
        return intra_link(hardware)
    link = inter_link(hardware)
    return GradientLink(alpha_us=link.alpha_us, beta_us_per_MB=link.beta_us_per_MB * min(apart, per_node))


def _costs(size: int, link: GradientLink, alltoall: Alltoall) -> tuple[TransferCost, ...]:
    """Rings of `size` workers; an all-to-all sends each its part directly, or gathers all of the array."""
    alpha_ns, rate = link.alpha_us * 1e3, MEBIBYTE * 1e6 / link.beta_us_per_MB
    gathering = rate * size / max(1, size - 1)

    def cost(transfer: AxisTransfer, rounds: int, reached: float) -> TransferCost:
        return TransferCost(transfer=transfer, alpha_ns=round(rounds * alpha_ns), rate=max(1, round(reached)))

    return (
        cost("allgather", size - 1, gathering),
        cost("reduce-scatter", size - 1, gathering),
        cost("allreduce", 2 * (size - 1), gathering / 2),
        cost("alltoall", size - 1, gathering * size if alltoall == "direct" else gathering),
    )
