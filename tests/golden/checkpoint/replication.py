"""Which ranks hold each other's checkpoints: three layers, 5 machines with 2 devices each.

    manager = LocalCheckpointManager(folder, repl_strategy=strategy())

Save every iteration into a folder in memory, such as one of /dev/shm: each machine keeps 11.72 KiB there.

A clique gives every state of a group to all its machines. These machines are a ring in the plan and a group here, which
survives every loss that the ring survives, for more memory and traffic:
machines 2, 3, 4 hold 3 states each, in the plan 2.

It needs PyTorch and nvidia-resiliency-ext only.
"""

import torch.distributed
from nvidia_resiliency_ext.checkpointing.local.replication.group_utils import GroupWrapper
from nvidia_resiliency_ext.checkpointing.local.replication.strategies import CliqueReplicationStrategy

RANKS = 10
CLIQUES = [
    [0, 2],
    [1, 3],
    [4, 6, 8],
    [5, 7, 9],
]


def strategy(**options):
    """The strategy of this rank; every rank of the job calls it once. Options are those of `new_group`, such as
    `backend`."""
    found = torch.distributed.get_world_size()
    if found != RANKS:
        raise ValueError(f"found {found} ranks, expected the {RANKS} of the plan")
    groups = [torch.distributed.new_group(ranks, **options) for ranks in CLIQUES]
    return CliqueReplicationStrategy(GroupWrapper.from_list_of_groups(groups))
