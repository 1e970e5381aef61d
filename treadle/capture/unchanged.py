"""A live model is as before after it was traced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

_CONTAINERS = (dict, list, set)


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """After this block every module of `model` has the attributes, modes and hooks that it had, attributes that are
    dicts, lists or sets have the same members, and PyTorch's random generators their states."""
    attributes = [(vars(module), dict(vars(module))) for module in model.modules()]
    members = [(x, x.copy()) for _, kept in attributes for x in kept.values() if type(x) in _CONTAINERS]
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            for live, kept in attributes:
                live.clear()
                live.update(kept)
            for container, before in members:
                container.clear()
                container.extend(before) if isinstance(container, list) else container.update(before)
