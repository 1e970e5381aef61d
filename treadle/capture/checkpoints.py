"""Checkpointing that a model has already, which a capture leaves out: the plan decides what to recompute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import checkpoint


@contextmanager
def without_checkpoints() -> Iterator[None]:
    """Within this block `torch.utils.checkpoint` calls its functions and keeps what they keep, with either value of
    `use_reentrant`."""
    before = checkpoint._checkpoint_without_reentrant_generator, checkpoint.CheckpointFunction
    changed: Any = checkpoint
    changed._checkpoint_without_reentrant_generator = _no_saving
    changed.CheckpointFunction = _Called
    try:
        yield
    finally:
        changed._checkpoint_without_reentrant_generator, changed.CheckpointFunction = before


def _no_saving(*args: Any, **kwargs: Any) -> Iterator[None]:
    """Stands for the generator around the function of a checkpoint that is not reentrant."""
    yield


class _Called:
    """Stands for the autograd function of a reentrant checkpoint."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        """A reentrant checkpoint has a gradient only where one of its arguments requires one."""
        wanted = any(isinstance(value, Tensor) and value.requires_grad for value in args)
        with torch.set_grad_enabled(wanted and torch.is_grad_enabled()):
            return function(*args)
