"""What a kernel allocates besides its results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from treadle.runtime.meter import Meter


def workspace(kernel: Callable[..., Any], *args: Any) -> int:
    """Bytes at the peak of `kernel(*args)` beyond its arguments and what lives after it."""
    with torch.no_grad(), Meter([leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]) as meter:
        results = kernel(*args)
        live = meter.live_bytes
        del results
    return meter.peak_bytes - live
