"""Convolution by a named cuDNN algorithm, forced rather than hinted, in a workspace of PyTorch's own allocator.

`convolution_cudnn.cpp` is compiled on first use against the cuDNN that PyTorch runs on and is called through ctypes.
All functions raise MissingBackendError without a GPU, cuDNN's headers or a compiler, and RuntimeError with cuDNN's
message where it does not support an algorithm for the shapes, the type or the device.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from treadle.kernels.geometry import Shape, Size, output_size, pair
from treadle.planner.errors import MissingBackendError
from treadle.planner.graph.implementations.convolution import Direction
from treadle.planner.graph.implementations.cudnn import ALGORITHMS

_DIRECTIONS: tuple[Direction, ...] = ("forward", "input", "weight")
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_SOURCE = Path(__file__).with_suffix(".cpp")


def conv2d_cudnn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Size,
    padding: Size,
    dilation: Size,
    groups: int,
    algorithm: str,
) -> Tensor:
    """2d convolution. Workspace: what cuDNN asks for, and copies of operands that are not contiguous."""
    window = (stride, padding, dilation)
    axes = zip(x.shape[2:], weight.shape[2:], *map(pair, window), strict=True)
    y = x.new_empty((x.shape[0], weight.shape[0], *(output_size(*axis) for axis in axes)))
    _run("forward", algorithm, x.contiguous(), weight.contiguous(), y, window, groups)
    return y if bias is None else y.add_(bias.view(-1, 1, 1))


def conv2d_cudnn_weight_gradient(
    grad: Tensor,
    x: Tensor,
    weight_shape: Shape,
    has_bias: bool,
    stride: Size,
    padding: Size,
    dilation: Size,
    groups: int,
    algorithm: str,
) -> list[Tensor | None]:
    """Gradients of weight and bias; the second is None without a bias."""
    result = x.new_empty(tuple(weight_shape))
    _run("weight", algorithm, x.contiguous(), result, grad.contiguous(), (stride, padding, dilation), groups)
    return [result, grad.sum((0, 2, 3)) if has_bias else None]


def conv2d_cudnn_input_gradient(
    grad: Tensor,
    weight: Tensor,
    input_shape: Shape,
    stride: Size,
    padding: Size,
    dilation: Size,
    groups: int,
    algorithm: str,
) -> Tensor:
    """Gradient of the image."""
    result = grad.new_empty(tuple(input_shape))
    _run("input", algorithm, result, weight.contiguous(), grad.contiguous(), (stride, padding, dilation), groups)
    return result


def require_cudnn() -> None:
    """Build or find the library. Raises MissingBackendError or CheckFailed where that cannot be done."""
    if not torch.cuda.is_available() or torch.version.cuda is None:
        raise MissingBackendError("cuDNN's convolution algorithms need an NVIDIA GPU that PyTorch can use")
    _library()


class _Numbers(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int) for name in ("direction", "algorithm", "device", "dtype", "tf32")),
        *((name, ctypes.c_int * 4) for name in ("x", "weight", "y")),
        *((name, ctypes.c_int * 2) for name in ("stride", "padding", "dilation")),
        ("groups", ctypes.c_int),
    ]


def _run(
    direction: Direction,
    algorithm: str,
    x: Tensor,
    weight: Tensor,
    y: Tensor,
    window: tuple[Size, Size, Size],
    groups: int,
) -> None:
    library = _library_for(x.device)
    shapes = [(ctypes.c_int * 4)(*tensor.shape) for tensor in (x, weight, y)]
    numbers = _Numbers(
        _DIRECTIONS.index(direction),
        ALGORITHMS[direction].index(algorithm),
        x.device.index or 0,
        _DTYPES.index(x.dtype),
        torch.backends.cudnn.allow_tf32,
        *shapes,
        *((ctypes.c_int * 2)(*pair(numbers)) for numbers in window),
        groups,
    )
    with torch.cuda.device(x.device):
        wanted = ctypes.c_size_t()
        _check(library.treadle_cudnn_workspace(ctypes.byref(numbers), ctypes.byref(wanted)))
        workspace = x.new_empty(wanted.value, dtype=torch.uint8)
        stream = _stream(x.device)
        pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, weight, y, workspace))
        _check(library.treadle_cudnn_run(ctypes.byref(numbers), *pointers, ctypes.c_size_t(wanted.value), stream))


def _check(failure: bytes | None) -> None:
    if failure is not None:
        raise RuntimeError(failure.decode())


def _stream(device: torch.device) -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)


def _library_for(device: torch.device) -> ctypes.CDLL:
    if device.type != "cuda":
        raise MissingBackendError(f"found tensors on {device}; cuDNN's convolution algorithms run on NVIDIA GPUs")
    return _library()


@cache
def _library() -> ctypes.CDLL:
    return load(*locate())


def locate() -> tuple[list[Path], Path]:
    """Folders of the headers of cuDNN and CUDA, and cuDNN's shared library, in the packages that come with PyTorch,
    otherwise in the toolkit. Raises MissingBackendError where they are missing."""
    places = _places()
    headers = []
    # The package of CUDA's runtime has headers that include some of the toolkit, in crt.
    for name, *included in (("cudnn.h",), ("cuda_runtime_api.h", "crt/host_defines.h")):
        found = next(
            (
                place / "include"
                for place in places
                if all((place / "include" / each).is_file() for each in (name, *included))
            ),
            None,
        )
        if found is None:
            raise MissingBackendError(
                f"cuDNN's convolution algorithms need {name}, which was not found; "
                "install it: pip install nvidia-cudnn-cu13 nvidia-cuda-runtime"
            )
        headers.append(found)
    libraries = [
        file
        for place in places
        for folder in ("lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu")
        for file in sorted((place / folder).glob("libcudnn.so.*"))
    ]
    if not libraries:
        raise MissingBackendError(
            "cuDNN's convolution algorithms need libcudnn.so, which was not found; install it: "
            "pip install nvidia-cudnn-cu13"
        )
    return headers, libraries[0]


def _places() -> list[Path]:
    """Folders that may have `include` and `lib`: of NVIDIA's Python packages, then of toolkits."""
    from torch.utils import cpp_extension

    parents = find_spec("nvidia")
    roots = [Path(root) for root in (parents.submodule_search_locations or ())] if parents else []
    packages = [root / name for root in roots for name in ("cudnn", "cu13", "cuda_runtime")]
    nvcc = shutil.which("nvcc")
    toolkit = os.path.dirname(os.path.dirname(os.path.realpath(nvcc))) if nvcc else None
    homes = (cpp_extension.CUDNN_HOME, cpp_extension.CUDA_HOME, toolkit, "/usr/local/cuda", "/usr")
    return [*packages, *(Path(home) for home in homes if home)]


def load(headers: Sequence[Path], cudnn: Path) -> ctypes.CDLL:
    """The extension, compiled against `headers` and linked to `cudnn`. Raises CheckFailed with the compiler's words."""
    from treadle.runtime.native_build import compile_library

    options = [
        *(f"-I{folder}" for folder in headers),
        "-Wno-deprecated-declarations",
        "-Wl,--no-as-needed",
        f"-L{cudnn.parent}",
        f"-l:{cudnn.name}",
        f"-Wl,-rpath,{cudnn.parent}",
    ]
    name = f"{_SOURCE.stem}.cu"
    text = _SOURCE.read_text(encoding="utf-8")
    library = ctypes.CDLL(os.fspath(compile_library({name: text}, name, "fibers", options)))
    for function in (library.treadle_cudnn_workspace, library.treadle_cudnn_run):
        function.restype = ctypes.c_char_p
    return library
