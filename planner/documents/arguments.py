"""The calls that a trace holds, as generated programs may spell them: operators, keywords and argument trees.

Whatever is named here goes into generated Python without quotation marks, so each has a grammar or a closed list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from keyword import iskeyword
from typing import Any

from treadle.planner.documents.explain import child, found

DTYPES = frozenset(
    {
        *("bool", "bfloat16", "float16", "float32", "float64", "complex32", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)),
        *("qint8", "quint8", "qint32", "quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16"),
    }
)
"""PyTorch's names of its element types."""
LAYOUTS = frozenset(
    {"strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "jagged", "_mkldnn"}
)
MEMORY_FORMATS = frozenset({"contiguous_format", "preserve_format", "channels_last", "channels_last_3d"})
FLOATS = frozenset({"nan", "inf", "-inf"})
"""What JSON cannot hold of the numbers."""
WORDS: Mapping[str, frozenset[str]] = {
    "dtype": DTYPES,
    "layout": LAYOUTS,
    "memory_format": MEMORY_FORMATS,
    "float": FLOATS,
}
"""By the key of a leaf, such as `{"dtype": "float32"}`: what its value may be."""

KERNELS = frozenset(
    {
        *("batch_norm_again", "batch_norm_backward_output", "conv2d_cudnn", "conv2d_cudnn_input_gradient"),
        *("conv2d_cudnn_weight_gradient", "conv2d_fft", "conv2d_im2col", "conv2d_im2col_sample"),
        *("conv2d_input_gradient", "conv2d_weight_gradient", "conv2d_winograd", "convolution_input_gradient"),
        *("convolution_weight_gradient", "dropout_backward_packed", "dropout_backward_rng", "dropout_mask_pack"),
        *("hardtanh_backward_", "hardtanh_backward_output", "layer_norm_backward_output", "max_pool2d"),
        *("max_pool2d_backward", "max_pool2d_backward_index", "max_pool2d_index", "relu_backward_mask"),
        *("relu_backward_mask_", "relu_mask", "rng_state", "safe_to_invert", "threshold_backward_"),
    }
)
"""Kernels of `treadle.kernels`, which targets call `treadle.NAME`."""
NO_OPERATORS = frozenset({"debug_mode_ops", "debugprims", "onnx", "prim", "profiler", "static_runtime"})
"""Namespaces of PyTorch that hold tools instead of operators on tensors."""
ON_FILES = frozenset({"aten.from_file", "aten.save"})
"""Operators that read or write files of their caller's choice."""
SPECIAL = frozenset(f"__{sign}{name}__" for sign in ("", "i") for name in ("and", "or", "xor", "lshift", "rshift"))
"""PyTorch's operators with two underscores at both ends; no other name may have them."""

_WORD = r"[A-Za-z_][A-Za-z0-9_]*"
_TARGET = re.compile(rf"({_WORD})\.({_WORD})\.({_WORD})", re.ASCII)
_KEYWORD = re.compile(_WORD, re.ASCII)
_DEVICE = re.compile(r"[a-z][a-z0-9_]{0,31}(:[0-9]{1,4})?", re.ASCII)

Problem = tuple[str, str, str]
"""(path, found, expected)"""


def target_problem(target: str) -> str | None:
    """What was expected instead of a target that no program may call; None for one that it may."""
    if target.startswith("treadle."):
        known = target.removeprefix("treadle.") in KERNELS
        return None if known else "a kernel of treadle.kernels such as treadle.relu_mask"
    match = _TARGET.fullmatch(target)
    if match is None:
        return "an operator overload such as aten.mm.default"
    namespace, name, overload = match.groups()
    if namespace in NO_OPERATORS or f"{namespace}.{name}" in ON_FILES:
        return "an operator on tensors, which reads and writes nothing else"
    if any(word.startswith("__") for word in (namespace, overload)) or (name.startswith("__") and name not in SPECIAL):
        return "an operator overload such as aten.mm.default"
    return None


def word_expected(key: str) -> str:
    """What the value of a leaf with this key may be."""
    if key == "dtype":
        return "an element type of PyTorch such as float32"
    return f"one of {', '.join(sorted(WORDS[key]))}"


def call_problems(path: str, target: str, args: Any, kwargs: Any) -> Iterator[Problem]:
    """Yield every part of a call that cannot be spelled."""
    expected = target_problem(target)
    if expected is not None:
        yield f"{path}.target", found(target), expected
    for index, tree in enumerate(args or ()):
        yield from tree_problems(f"{path}.args[{index}]", tree)
    for key, tree in (kwargs or {}).items():
        place = child(f"{path}.kwargs", key)
        if _KEYWORD.fullmatch(key) is None or key.startswith("__") or iskeyword(key):
            yield place, found(key), "the name of an argument"
        yield from tree_problems(place, tree)


def named_tensors(tree: Any) -> Iterator[str]:
    """Ids of the tensors in an argument tree, in the order of the call."""
    if isinstance(tree, list | tuple):
        for item in tree:
            yield from named_tensors(item)
    elif isinstance(tree, dict) and isinstance(tree.get("tensor"), str):
        yield tree["tensor"]


def input_problems(path: str, inputs: Sequence[str], args: Any, kwargs: Any) -> Iterator[Problem]:
    """Yield every input that the call does not name, and every tensor of the call that is not among its inputs."""
    named = dict.fromkeys((*named_tensors(args), *named_tensors([*(kwargs or {}).values()])))
    for place, tensor in enumerate(inputs):
        if tensor not in named:
            yield f"{path}.inputs[{place}]", f"{tensor!r}, which is not in the arguments", "the tensors of the call"
    for tensor in named:
        if tensor not in inputs:
            yield f"{path}.inputs", f"no {tensor!r}, which is in the arguments", "all tensors of the call"


def tree_problems(path: str, tree: Any) -> Iterator[Problem]:
    """Yield every part of an argument tree (see `treadle.planner.documents.trace.Op`) that stands for nothing."""
    if isinstance(tree, list | tuple):
        for index, item in enumerate(tree):
            if isinstance(item, list | tuple | dict):
                yield from tree_problems(f"{path}[{index}]", item)
        return
    if not isinstance(tree, dict):
        return
    if len(tree) != 1:
        yield path, "an object of other than one field", "for example {'tensor': ID}"
        return
    ((key, value),) = tree.items()
    place = child(path, key)
    if key in WORDS:
        if not isinstance(value, str) or value not in WORDS[key]:
            yield place, found(value), word_expected(key)
    elif key == "device":
        if not isinstance(value, str) or _DEVICE.fullmatch(value) is None:
            yield place, found(value), "a device such as cpu or cuda:0"
    elif key != "tensor":
        yield place, "an unknown field", "one of tensor, dtype, device, layout, memory_format, float"
    elif not isinstance(value, str):
        yield place, found(value), "the id of a tensor"
