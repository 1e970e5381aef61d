"""Sparse gradients of a training script: `treadle.sparse.record(model)` finds out how sparse they are."""

from __future__ import annotations

from treadle.sparse.recording import SparsityRecording, record

__all__ = ["SparsityRecording", "record"]
