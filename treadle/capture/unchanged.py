"""A live model is as before after it was traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_CONTAINERS = (dict, list, set)
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_OF_RNNS = frozenset(("_flat_weights", "_flat_weight_refs"))
"""Attributes that PyTorch's recurrent layers set where their parameters are swapped."""


@contextmanager
def unchanged(model: nn.Module, note: Callable[[str], None] = lambda name: None) -> Iterator[None]:
    """After this block every module of `model` has the attributes, modes and hooks that it had, attributes that are
    dicts, lists or sets have the same members, and PyTorch's random generators their states. `note` is called with the
    name of each attribute that the block has set."""
    places = [(place, vars(module), dict(vars(module))) for place, module in model.named_modules()]
    attributes = [(live, kept) for _, live, kept in places]
    members = [(x, x.copy()) for _, kept in attributes for x in kept.values() if type(x) in _CONTAINERS]
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=devices):
        try:
            yield
            before = {id(container): kept for container, kept in members}
            for place, live, kept in places:
                for name in live.keys() - _OF_EVERY_MODULE - _OF_RNNS:
                    if not _is_same(kept.get(name, ...), live[name], before):
                        note(f"{place}.{name}".lstrip("."))
        finally:
            for live, kept in attributes:
                live.clear()
                live.update(kept)
            for container, before in members:
                container.clear()
                container.extend(before) if isinstance(container, list) else container.update(before)


def _is_same(before: Any, now: Any, members: dict[int, Any]) -> bool:
    """Whether an attribute is the same object with the same members, or an equal number or text."""
    if before is not now:
        return type(before) is type(now) and isinstance(now, int | float | str) and before == now
    kept = members.get(id(now), now)
    if isinstance(now, dict):
        return kept.keys() == now.keys() and all(kept[key] is item for key, item in now.items())
    if isinstance(now, list):
        return len(kept) == len(now) and all(a is b for a, b in zip(kept, now, strict=True))
    return not isinstance(now, set) or kept == now
