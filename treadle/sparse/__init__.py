"""Sparse gradients of data-parallel training: `treadle.sparse.record(model)` finds out how sparse they are,
`treadle.sparse.attach(model, plan)` exchanges them under a plan."""

from __future__ import annotations

from treadle.runtime.sparse.ddp import SparseHook
from treadle.sparse.models import attach
from treadle.sparse.recording import SparsityRecording, record

__all__ = ["SparseHook", "SparsityRecording", "attach", "record"]
