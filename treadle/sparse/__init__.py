"""Sparse gradients of a training script: `treadle.sparse.record(model)` finds out how sparse they are, and
`treadle.sparse.attach(model, plan)` exchanges those of a DistributedDataParallel model under a plan."""

from __future__ import annotations

from treadle.runtime.sparse.ddp import SparseHook, SparseStatistics
from treadle.sparse.models import attach
from treadle.sparse.recording import SparsityRecording, record

__all__ = ["SparseHook", "SparseStatistics", "SparsityRecording", "attach", "record"]
