"""Functions of `torch.distributed` by the names of PyTorch 2.13; 2.9 to 2.12 have them under older ones."""

from __future__ import annotations

from torch import distributed

all_gather_single = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
reduce_scatter_single = getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor
