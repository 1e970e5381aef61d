"""Other implementations of convolutions: cuDNN's algorithms by name, our own, all three directions, against PyTorch's.

In a dry run our own on the CPU, and the calls of cuDNN are compiled against its headers where they are installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import Row, Table, gpu_milliseconds
from benchmarks.gpu.items import Outcome
from treadle import kernels as implementations
from treadle.planner.errors import CheckFailed, MissingBackendError
from treadle.planner.graph.implementations.cudnn import ALGORITHMS

SHAPE, WEIGHT = (16, 64, 56, 56), (64, 64, 3, 3)
DRY_SHAPE, DRY_WEIGHT = (1, 4, 12, 12), (4, 4, 3, 3)
WINDOW: tuple[Any, ...] = (1, 1, 1, 1)
"""Stride, padding, dilation, groups."""
TOLERANCE = 2e-3
"""Relative to the largest value, for single precision; transforms lose some digits."""
REPEATS = 10


def check(dry: bool) -> Outcome:
    """Raises CheckFailed naming each implementation whose values are not those of PyTorch."""
    torch.backends.cudnn.allow_tf32 = False
    x, weight = _example(*((DRY_SHAPE, DRY_WEIGHT, "cpu") if dry else (SHAPE, WEIGHT, "cuda")))
    y = torch.nn.functional.conv2d(x, weight, None, *WINDOW)
    grad = torch.randn_like(y)
    of_x, of_weight = torch.autograd.grad(y, (x, weight), grad)
    values = {"forward": y.detach(), "input": of_x, "weight": of_weight}
    rows: list[Row] = []
    with torch.no_grad():
        for direction, name, call in _calls(x.detach(), weight.detach(), grad, dry):
            try:
                found = call()
            except RuntimeError as error:
                if "NOT_SUPPORTED" not in str(error):
                    raise
                continue
            wanted = values[direction]
            row: Row = {"direction": direction, "implementation": name}
            row["difference"] = float((found - wanted).abs().max() / wanted.abs().max())
            if not dry:
                row["ms"] = gpu_milliseconds(call, REPEATS)
            rows.append(row)
    wrong = [row for row in rows if not row["difference"] <= TOLERANCE]
    if wrong:
        lines = tuple(f"{row['implementation']} {row['direction']}: off by {row['difference']:.2g}" for row in wrong)
        raise CheckFailed(f"{len(wrong)} of {len(rows)} implementations differ: {lines[0]}", lines)
    worst = max(row["difference"] for row in rows)
    return Outcome(
        f"{len(rows)} implementations right within {worst:.1g}{_headers() if dry else ''}",
        (Table("Convolutions", rows),),
    )


def _example(shape: tuple[int, ...], weight: tuple[int, ...], device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = (torch.randn(size, generator=generator).to(device).requires_grad_() for size in (shape, weight))
    return next(made), next(made)


def _calls(x: Tensor, weight: Tensor, grad: Tensor, dry: bool) -> Iterator[tuple[str, str, Callable[[], Tensor]]]:
    """(direction, name, call) of every implementation."""
    for name in ("im2col", "im2col_sample", "fft", "winograd"):
        yield "forward", name, partial(getattr(implementations, f"conv2d_{name}"), x, weight, None, *WINDOW)
    if dry:
        return
    for algorithm in ALGORITHMS["forward"]:
        call = partial(implementations.conv2d_cudnn, x, weight, None, *WINDOW, algorithm)
        yield "forward", f"cudnn {algorithm}", call
    for algorithm in ALGORITHMS["input"]:
        call = partial(implementations.conv2d_cudnn_input_gradient, grad, weight, list(x.shape), *WINDOW, algorithm)
        yield "input", f"cudnn {algorithm}", call
    for algorithm in ALGORITHMS["weight"]:
        both = partial(
            implementations.conv2d_cudnn_weight_gradient, grad, x, list(weight.shape), False, *WINDOW, algorithm
        )
        yield "weight", f"cudnn {algorithm}", lambda both=both: both()[0]


def _headers() -> str:
    from treadle.kernels import convolution_cudnn

    try:
        convolution_cudnn.load(*convolution_cudnn.locate())
    except MissingBackendError as error:
        return f"; {error}"
    return "; calls of cuDNN compile"
