"""The process groups of nodes of ranks: all of them, those of a node, those of the same place on all nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import distributed

from treadle.runtime.torch_names import new_group


@dataclass(frozen=True)
class ScopeGroups:
    """The groups of this rank: all ranks, those of its node, and those of its local index on all nodes. None where
    that rank has no other."""

    flat: Any
    intra: Any
    inter: Any

    def of(self, scope: str) -> Any:
        return getattr(self, scope)


def scope_groups(devices: int, **options: Any) -> ScopeGroups:
    """Groups for nodes of `devices` ranks, which follow each other. All ranks call it. `options` are those of
    `new_group`.

    Raises ValueError where the ranks do not fill nodes.
    """
    rank, world = distributed.get_rank(), distributed.get_world_size()
    if world % devices:
        raise ValueError(f"{world} ranks are no nodes of {devices}")
    nodes = world // devices
    scopes = {
        "flat": [range(world)],
        "intra": [range(node * devices, (node + 1) * devices) for node in range(nodes)],
        "inter": [range(local, world, devices) for local in range(devices)],
    }
    found = {}
    for scope, members in scopes.items():
        made = [(each, new_group(list(each), **options)) for each in members if len(each) > 1]
        found[scope] = next((group for each, group in made if rank in each), None)
    return ScopeGroups(**found)
