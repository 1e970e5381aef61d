"""What turns a gradient into a payload and adds payloads up: one interface for all algorithms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from treadle.kernels.compression.library import MAX_ELEMENTS, CompressionLibrary, library_of
from treadle.planner.errors import InputError
from treadle.planner.machine.compressors import Compressor, compressor

IDENTITY = "identity"
"""The compressor whose payload is the gradient, for tests; no plan names it."""


@dataclass(frozen=True)
class Codec(ABC):
    """A compressor of float32 tensors of `elements`, whose payloads have `wire_bytes`. Calls are safe on any thread and
    let other threads of Python run. A codec holds no state: residuals are the caller's."""

    name: str
    elements: int
    wire_bytes: int

    def encode(self, values: Tensor, payload: Tensor, residual: Tensor | None = None, seed: int = 0) -> None:
        """`payload` (uint8 [wire_bytes]) of values + residual (float32 [elements]); the residual then holds what the
        payload lost. `seed` chooses what is random: the same on all ranks for `randomk`. Raises InputError for tensors
        of another size, type or layout."""
        self._require(values, self.elements, torch.float32, "values")
        self._require(payload, self.wire_bytes, torch.uint8, "payload")
        if residual is not None:
            self._require(residual, self.elements, torch.float32, "residual")
        self._encode(values, payload, residual, seed)

    def decode_add(self, payloads: Tensor, out: Tensor, seed: int = 0) -> None:
        """Add what `payloads` (uint8 [pieces * wire_bytes]) decode to, one after the other, to `out` (float32
        [elements]). Raises InputError for tensors of another size, type or layout."""
        self._require(out, self.elements, torch.float32, "out")
        pieces = payloads.numel() // self.wire_bytes if self.wire_bytes else 0
        self._require(payloads, pieces * self.wire_bytes, torch.uint8, "payloads")
        self._decode(payloads, out, pieces, seed)

    @abstractmethod
    def _encode(self, values: Tensor, payload: Tensor, residual: Tensor | None, seed: int) -> None: ...

    @abstractmethod
    def _decode(self, payloads: Tensor, out: Tensor, pieces: int, seed: int) -> None: ...

    def _require(self, tensor: Tensor, size: int, dtype: torch.dtype, what: str) -> None:
        if tensor.numel() != size or tensor.dtype != dtype or not tensor.is_contiguous():
            raise InputError(
                f"found {what} of {tensor.numel()} {tensor.dtype}"
                f"{'' if tensor.is_contiguous() else ', not contiguous'}, expected {size} {dtype}",
                where=self.name,
            )


@dataclass(frozen=True)
class IdentityCodec(Codec):
    """The payload is the gradient."""

    def _encode(self, values: Tensor, payload: Tensor, residual: Tensor | None, seed: int) -> None:
        sent = payload.view(torch.float32).copy_(values)
        if residual is not None:
            sent.add_(residual)
            residual.zero_()

    def _decode(self, payloads: Tensor, out: Tensor, pieces: int, seed: int) -> None:
        for piece in payloads.view(torch.float32).view(pieces, self.elements):
            out.add_(piece)


@dataclass(frozen=True)
class NativeCodec(Codec):
    """An algorithm of treadle_compression.h."""

    compressor: Compressor
    library: CompressionLibrary
    threads: int

    def clear(self, payload: Tensor, tensor: Tensor, seed: int = 0) -> None:
        """Set to 0 the elements of `tensor` (float32 [elements]) that a sparse payload holds. Raises InputError for
        another compressor."""
        if self.compressor.algorithm.parameter != "ratio":
            raise InputError(f"found {self.name}, expected a compressor with a ratio")
        self._require(tensor, self.elements, torch.float32, "tensor")
        self._require(payload, self.wire_bytes, torch.uint8, "payload")
        self.library.decode(self.compressor, payload, tensor, seed=seed, clears=True, threads=self.threads)

    def _encode(self, values: Tensor, payload: Tensor, residual: Tensor | None, seed: int) -> None:
        self.library.encode(self.compressor, values, payload, residual, seed=seed, threads=self.threads)

    def _decode(self, payloads: Tensor, out: Tensor, pieces: int, seed: int) -> None:
        self.library.decode(self.compressor, payloads, out, seed=seed, pieces=pieces, threads=self.threads)


def codec(name: str, elements: int, *, device: torch.device | str = "cpu", threads: int | None = None) -> Codec:
    """The codec of `ALGORITHM[:RATIO]`, or `identity`, for `elements` float32 on `device`, with as many `threads` of
    the CPU (by default those of PyTorch). Raises InputError for another name, for `powersgd`, which takes two exchanges
    (`PowerSGD`), and for more than MAX_ELEMENTS; MissingBackendError without a compiler for the device."""
    if not 0 <= elements <= MAX_ELEMENTS:
        raise InputError(f"found {elements} elements, expected 0 to {MAX_ELEMENTS}", where=name)
    if name == IDENTITY:
        return IdentityCodec(name, elements, 4 * elements)
    found = compressor(name)
    if found.algorithm.name == "powersgd":
        raise InputError(f"found {name}, expected a compressor of one exchange")
    if threads is None:
        threads = torch.get_num_threads()
    library = library_of(torch.device(device).type)
    return NativeCodec(found.name, elements, found.wire_bytes(elements), found, library, max(1, threads))
