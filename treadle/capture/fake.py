"""Fake tensors that can be copied and converted as models are while they are built, with storages of the right size."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, _BypassDispatchCache
from torch.overrides import TorchFunctionMode

_aten = torch.ops.aten
_INPUT_OF_NORMALISATION: dict[Any, int] = {
    _aten.native_batch_norm: 0,
    _aten._native_batch_norm_legit: 0,
    _aten._native_batch_norm_legit_functional: 0,
    _aten._native_batch_norm_legit_no_training: 0,
    _aten.native_batch_norm_backward: 1,
}
_REDUCED_IN_PLACE = (_aten.mse_loss, _aten.smooth_l1_loss, _aten.binary_cross_entropy, _aten.soft_margin_loss)
NO_KEYWORDS: Mapping[str, Any] = MappingProxyType({})


class ExactStorages(FakeTensorMode):
    """Fake tensors with the storages, and the strides of normalised batches, that the kernels make.

    They never answer from the cache where a storage is larger than its tensor: PyTorch's cache forgets such a size, so
    what a trace says of it would depend on what was traced before. On the CPU batch normalisation lays its result out
    row by row or channels last whatever the strides of its input, which fake tensors take over, and some losses reduce
    their elements into the first of them, so that the scalar keeps the memory of all.
    """

    def dispatch(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] = NO_KEYWORDS
    ) -> Any:
        result: Any = super().dispatch(func, types, args, kwargs)
        packet = getattr(func, "overloadpacket", None)
        if packet in _REDUCED_IN_PLACE and result.dim() == 0 and result.device.type == "cpu":
            elements = torch.broadcast_shapes(args[0].shape, args[1].shape)
            return result.new_empty(elements).as_strided((), ())
        place = _INPUT_OF_NORMALISATION.get(packet)
        if place is None or result[0] is None or result[0].device.type != "cpu":
            return result
        laid_out = torch.empty_like(result[0], memory_format=suggest_memory_format(args[place]))
        return (laid_out, *result[1:])

    def _validate_output_for_cache_entry(
        self, state: Any, key: Any, func: Any, args: Any, kwargs: Any, output: Any
    ) -> None:
        super()._validate_output_for_cache_entry(state, key, func, args, kwargs, output)
        size = output.numel() * output.element_size() if isinstance(output, Tensor) else 0
        if isinstance(output, Tensor) and not func.is_view and output.untyped_storage().nbytes() != size:
            raise _BypassDispatchCache("storage larger than its tensor")


def conversions_allowed(fake: FakeTensorMode) -> AbstractContextManager[None]:
    """Let `model.to(dtype)` work on fake parameters.

    It swaps tensors in place, which PyTorch refuses while a weak reference to them is in the mode's memo; a plain
    dictionary as memo holds none.
    """
    return _replaced(fake.fake_tensor_converter.meta_converter, "tensor_memo", {})


class Placed(TorchFunctionMode):
    """Tensors that would be made on the meta device, or go there, get fake ones on `device` instead.

    Large models are built on the meta device to save memory, which fake tensors do not take; the step runs elsewhere.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        def place(value: Any) -> Any:
            meta = (
                value == "meta" if isinstance(value, str) else isinstance(value, torch.device) and value.type == "meta"
            )
            return self.device if meta else value

        return func(*map(place, args), **{key: place(value) for key, value in (kwargs or {}).items()})


def from_meta(tensor: Tensor, device: torch.device) -> Tensor:
    """A fake tensor on `device` like `tensor`, which is on the meta device; made inside the mode of fake tensors."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return made.requires_grad_(tensor.requires_grad)


def unlogged() -> AbstractContextManager[None]:
    """Within this block fake tensors do not log the traceback of an error that they raise as well."""
    return _replaced(logging.getLogger("torch._subclasses.fake_tensor"), "disabled", True)


def copyable() -> AbstractContextManager[None]:
    """Within this block `copy.deepcopy` works on fake tensors and parameters, as `nn.TransformerEncoder` wants.

    PyTorch's own copies the storage byte by byte, which a fake tensor does not have.
    """
    return _replaced(FakeTensor, "__deepcopy__", _copy)


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _copy(tensor: FakeTensor, memo: dict[int, Any]) -> Tensor:
    if id(tensor) not in memo:
        with torch.no_grad():
            copied = tensor.detach().clone(memory_format=torch.preserve_format)
        parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = (
            nn.Parameter(copied, tensor.requires_grad) if parameter else copied.requires_grad_(tensor.requires_grad)
        )
    result: Tensor = memo[id(tensor)]
    return result
