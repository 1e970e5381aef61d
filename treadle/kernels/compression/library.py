"""The compiled encoders and decoders, called through ctypes, which lets other threads of Python run meanwhile."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor

from treadle.planner.errors import InputError
from treadle.planner.machine.compressors import Compressor
from treadle.runtime.kernel_texts import texts
from treadle.runtime.native_build import Target, compile_library

ALGORITHMS = ("randomk", "topk", "dgc", "efsignsgd", "onebit", "qsgd", "int8", "fp16", "bf16")
"""By the numbers of treadle_compression.h."""
MAX_ELEMENTS = 2**31 - 1


class _Coding(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("algorithm", "pieces", "clears", "threads")),
        *((name, ctypes.c_int64) for name in ("elements", "kept", "words")),
        ("seed", ctypes.c_uint64),
        *((name, ctypes.c_void_p) for name in ("values", "residual", "payload", "out", "scratch", "stream")),
        ("order", ctypes.c_uint64),
        ("device", ctypes.c_int32),
    ]


class CompressionLibrary:
    """The text compiled for CPUs (`process`), for GPUs (`cuda`), or for GPUs and run by fibers of a CPU.

    Tensors are contiguous, on one device, and aligned to 4 bytes; float32, but for payloads, which are uint8. Raises
    MissingBackendError without the compiler.
    """

    def __init__(self, target: Target, arch: str | None = None) -> None:
        main = "treadle_compression.cpp" if target == "process" else "treadle_compression.cu"
        self.target = target
        self._library: Any = ctypes.CDLL(str(compile_library(texts("compression"), main, target, (), arch)))
        self._library.treadle_message.restype = ctypes.c_char_p
        if target != "process":
            self._library.treadle_scratch_bytes.restype = ctypes.c_int64

    def encode(
        self,
        compressor: Compressor,
        values: Tensor,
        payload: Tensor,
        residual: Tensor | None,
        *,
        seed: int,
        threads: int = 1,
        order: int = 0,
    ) -> None:
        """`payload` of `values` and `residual`, which keeps what the payload lost. `order` seeds fibers."""
        if values.numel():
            coding = self._coding(compressor, values, payload, seed, threads, order)
            coding.values, coding.residual = values.data_ptr(), 0 if residual is None else residual.data_ptr()
            self._call(self._library.treadle_encode, coding, values.device)

    def decode(
        self,
        compressor: Compressor,
        payloads: Tensor,
        out: Tensor,
        *,
        seed: int,
        pieces: int = 1,
        clears: bool = False,
        threads: int = 1,
        order: int = 0,
    ) -> None:
        """Add `pieces` payloads to `out`, in their order; or clear the elements that a sparse payload holds."""
        if out.numel():
            coding = self._coding(compressor, out, payloads, seed, threads, order)
            coding.out, coding.pieces, coding.clears = out.data_ptr(), pieces, clears
            self._call(self._library.treadle_decode, coding, out.device)

    def _coding(
        self, compressor: Compressor, like: Tensor, payload: Tensor, seed: int, threads: int, order: int
    ) -> _Coding:
        elements = like.numel()
        if payload.data_ptr() % 4:
            raise InputError("found a payload at an odd address, expected a multiple of 4 bytes")
        return _Coding(
            algorithm=ALGORITHMS.index(compressor.algorithm.name),
            threads=threads,
            elements=elements,
            kept=compressor.kept(elements) if compressor.algorithm.parameter == "ratio" else elements,
            words=compressor.wire_bytes(elements) // 4,
            seed=seed % 2**64,
            payload=payload.data_ptr(),
            order=order,
            device=like.device.index or 0,
        )

    def _call(self, function: Any, coding: _Coding, device: torch.device) -> None:
        scratch = None
        if self.target != "process":
            # The allocator gives it to later work of this stream only.
            size = self._library.treadle_scratch_bytes(ctypes.byref(coding))
            scratch = torch.empty(size, dtype=torch.uint8, device=device)
            coding.scratch = scratch.data_ptr()
        if device.type == "cuda":
            coding.stream = torch.cuda.current_stream(device).cuda_stream
        if function(ctypes.byref(coding)):
            raise InputError(self._library.treadle_message().decode(), where="compression")


@cache
def library_of(device: str) -> CompressionLibrary:
    """The library for a type of device, compiled at the first call. Raises MissingBackendError without the compiler,
    and InputError for another device."""
    if device not in ("cpu", "cuda"):
        raise InputError(f"found tensors on {device}, expected cpu or cuda")
    return CompressionLibrary("process" if device == "cpu" else "cuda")
