"""The compiled kernels of sparse gradients, called through ctypes, which lets other threads of Python run meanwhile."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor

from treadle.planner.errors import InputError
from treadle.runtime.kernel_texts import texts
from treadle.runtime.native_build import compile_library

MAX_UNITS = 2**31 - 1


class PartitionCall(ctypes.Structure):
    """`Partition` of treadle_partition_host.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("values", "indices")),
        *((name, ctypes.c_int64) for name in ("count", "width")),
        *((name, ctypes.c_void_p) for name in ("memory", "taken", "counts", "seeds", "out")),
        *((name, ctypes.c_int64) for name in ("slots", "serial")),
        *((name, ctypes.c_int32) for name in ("parts", "functions", "threads", "counting")),
    ]


class OwnedCall(ctypes.Structure):
    """`Owned` of treadle_sums_host.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("list", "rank")),
        *((name, ctypes.c_int64) for name in ("units", "first", "count")),
        ("seed", ctypes.c_uint32),
        *((name, ctypes.c_int32) for name in ("parts", "part")),
    ]


class SparseLibrary:
    """The text compiled for CPUs. Raises MissingBackendError without the compiler."""

    def __init__(self) -> None:
        self._library: Any = ctypes.CDLL(str(compile_library(texts("sparse"), "treadle_sparse.cpp", "process")))
        self._library.treadle_message.restype = ctypes.c_char_p

    def call(self, name: str, *arguments: Any) -> int:
        """What function `name` counts. Tensors are given by their addresses, None as null, integers as 64 bits.

        Raises InputError with its message where it fails.
        """
        function = self._library[f"treadle_{name}"]
        function.restype = ctypes.c_int64
        found: int = function(*map(_passed, arguments))
        if found < 0:
            raise InputError(self._library.treadle_message().decode(), where="sparse gradient")
        return found


def _passed(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    if isinstance(argument, ctypes.Structure):
        return ctypes.byref(argument)
    if isinstance(argument, float):
        return ctypes.c_float(argument)
    return ctypes.c_int64(argument)


@cache
def library() -> SparseLibrary:
    """The library, compiled at the first call. Raises MissingBackendError without the compiler."""
    return SparseLibrary()


def thread_count(threads: int | None) -> int:
    """`threads`, by default those of PyTorch."""
    return torch.get_num_threads() if threads is None else threads


def require(
    tensor: Tensor, dtype: torch.dtype, dimensions: int, what: str, device: torch.device | str = "cpu"
) -> Tensor:
    """The tensor, contiguous and on the device, as it has to be. Raises InputError for another one."""
    fits = tensor.dtype == dtype and tensor.dim() == dimensions and tensor.is_contiguous()
    if not fits or tensor.device != torch.device(device):
        found = f"{what} of {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} on {tensor.device}"
        wanted = f"contiguous ones of {str(dtype).removeprefix('torch.')} with {dimensions} dimensions on {device}"
        raise InputError(f"found {found}, expected {wanted}")
    return tensor
