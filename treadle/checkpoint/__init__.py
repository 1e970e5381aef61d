"""Checkpoints in the memory of other machines, in a training script: `treadle.checkpoint.attach`."""

from __future__ import annotations

from treadle.checkpoint.models import attach
from treadle.checkpoint.resume import Resumed
from treadle.checkpoint.training import Checkpoints, CheckpointStatistics

__all__ = ["CheckpointStatistics", "Checkpoints", "Resumed", "attach"]
