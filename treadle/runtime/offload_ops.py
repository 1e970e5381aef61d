"""PyTorch's activation offloading without an accelerator: `ao::offload`, `ao::reload` and `ao::wait_tensor` on the CPU.

PyTorch implements them for accelerators only. These stand-ins make each copy as late as the operators allow, when it is
waited for, and leave NaN or the largest integer in what is not there: whoever reads too early, or frees too early, gets
wrong numbers and not by chance the right ones. They count what is copied.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from treadle.planner.errors import MissingBackendError


@dataclass
class Traffic:
    """Copies made so far, and their bytes; `pending` are from buffers to what they will hold."""

    out_copies: int = 0
    out_bytes: int = 0
    in_copies: int = 0
    in_bytes: int = 0
    pending: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)


def operators() -> Any:
    """PyTorch's module of these operators. Raises MissingBackendError for versions without it, before 2.13."""
    try:
        from torch._functorch._activation_offloading import offload_ops
    except ImportError:
        raise MissingBackendError(
            f"found PyTorch {torch.__version__} without ao::offload, which torch-offload needs; "
            "install PyTorch 2.13 or newer: pip install 'torch>=2.13'"
        ) from None
    return offload_ops


@cache
def stand_in() -> Traffic:
    """Registers the stand-ins for tensors on the CPU, once; accelerators keep PyTorch's own. Raises MissingBackendError
    before PyTorch 2.13."""
    offload_ops = operators()
    traffic = Traffic()

    def offload(tensor: Tensor) -> Tensor:
        traffic.out_copies += 1
        traffic.out_bytes += tensor.nbytes
        return _later(traffic, torch.empty(tensor.shape, dtype=tensor.dtype), tensor)

    def reload(
        tensor: Tensor, device: torch.device, original_size: list[int] | None, original_stride: list[int] | None
    ) -> Tensor:
        traffic.in_copies += 1
        traffic.in_bytes += tensor.nbytes
        size = tensor.shape if original_size is None else original_size
        stride = tensor.stride() if original_stride is None else original_stride
        return _later(traffic, torch.empty_strided(size, stride, dtype=tensor.dtype), tensor)

    def wait_tensor(tensor: Tensor, keepalive: Tensor | None = None, last_use: Tensor | None = None) -> Tensor:
        buffer, source = traffic.pending.pop(tensor.data_ptr())
        buffer.copy_(source)
        if keepalive is not None:
            _poison(keepalive)
        return tensor

    offload_ops.offload.register_kernel("cpu")(offload)
    offload_ops.reload.register_kernel("cpu")(reload)
    torch.library.impl("ao::wait_tensor", "CPU")(wait_tensor)
    return traffic


def _later(traffic: Traffic, buffer: Tensor, source: Tensor) -> Tensor:
    _poison(buffer)
    if buffer.numel():
        traffic.pending[buffer.data_ptr()] = (buffer, source)
    return buffer


def _poison(tensor: Tensor) -> None:
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(float("nan"))
    else:
        tensor.fill_(tensor.dtype != torch.bool and torch.iinfo(tensor.dtype).max)
