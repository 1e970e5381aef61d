"""Sparse gradients of data-parallel training, exchanged under a plan: `treadle.sparse.attach(model, plan)`."""

from __future__ import annotations

from treadle.runtime.sparse.ddp import SparseHook
from treadle.sparse.models import attach

__all__ = ["SparseHook", "attach"]
