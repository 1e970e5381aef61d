"""Fake tensors that can be deep-copied, as `nn.TransformerEncoder` and many models do while they are built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor


@contextmanager
def copyable() -> Iterator[None]:
    """Within this block `copy.deepcopy` works on fake tensors and parameters.

    PyTorch's own copies the storage byte by byte, which a fake tensor does not have.
    """
    before = FakeTensor.__deepcopy__
    FakeTensor.__deepcopy__ = _copy
    try:
        yield
    finally:
        FakeTensor.__deepcopy__ = before


def _copy(tensor: FakeTensor, memo: dict[int, Any]) -> torch.Tensor:
    if id(tensor) not in memo:
        with torch.no_grad():
            copied = tensor.detach().clone(memory_format=torch.preserve_format)
        parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = (
            nn.Parameter(copied, tensor.requires_grad) if parameter else copied.requires_grad_(tensor.requires_grad)
        )
    result: torch.Tensor = memo[id(tensor)]
    return result
