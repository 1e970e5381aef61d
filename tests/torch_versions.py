"""What the installed PyTorch does otherwise than 2.13, by the names that it lacks."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch._higher_order_ops import effects
from torch.utils import checkpoint

COMPOSES_SILU = not hasattr(effects, "_get_effect")
"""2.9 traces the derivative of silu as a composition, which rounds otherwise than the kernel."""
CHECKPOINTS_KEEP_MORE = not hasattr(checkpoint, "_sac_storage_key")
"""Before 2.13 selective checkpointing keeps values longer than torch-sac predicts; gradients are right."""
COMPILES_PAST_BREAKS = not hasattr(torch.compiler, "_compile_session_context")
"""Before 2.13 `torch.compile(fullgraph=True)` of a planned module is no error."""
OFFLOADS = (
    find_spec("torch._functorch._activation_offloading") is not None
    and find_spec("torch._functorch._activation_offloading.offload_ops") is not None
)
"""Whether it has the operators that torch-offload inserts, as 2.13 has."""
