"""Process groups of the framework's own backends, without a place among those of torch.distributed.

`new_group` cannot make them: the group of all ranks does not stand yet, or only some ranks know that one is needed, and
with local synchronisation its names depend on how many groups a rank has.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch import distributed
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import ProcessGroup


class FrameworkBackend(NamedTuple):
    """A backend of torch.distributed, for one type of device."""

    device: str
    kind: Any
    backend: Any

    def register(self, group: ProcessGroup) -> None:
        """Have `group` use it."""
        group._set_default_backend(self.kind)
        group._register_backend(torch.device(self.device), self.kind, self.backend)


def framework_backend(name: str, store: Store, rank: int, size: int, timeout: timedelta) -> FrameworkBackend:
    """Connects the ranks that share `store`; `name` is gloo or nccl."""
    kinds = ProcessGroup.BackendType
    if name == "nccl":
        options = distributed.ProcessGroupNCCL.Options()
        options._timeout = timeout
        nccl = distributed.ProcessGroupNCCL(PrefixStore("cuda/", store), rank, size, options)
        found = FrameworkBackend("cuda", kinds.NCCL, nccl)
    else:
        gloo = distributed.ProcessGroupGloo(PrefixStore("cpu/", store), rank, size, timeout=timeout)
        found = FrameworkBackend("cpu", kinds.GLOO, gloo)
    found.backend._set_sequence_number_for_group()
    return found
