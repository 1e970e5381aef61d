"""What newer versions of PyTorch than 2.9 have, each under one name for all versions."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

from torch import distributed

all_gather_single = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
reduce_scatter_single = getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor
_IN_ORDER: dict[str, Any] = {"sort_ranks": False} if "sort_ranks" in signature(distributed.new_group).parameters else {}


def new_group(ranks: Sequence[int], **options: Any) -> Any:
    """`distributed.new_group` with the ranks in this order; versions without `sort_ranks` sort those of all groups."""
    return distributed.new_group(list(ranks), **_IN_ORDER, **options)
