"""Fourier transforms: the extension `fft` of the Python array API standard. Each needs whole lines along its axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from treadle.array.creation import arange, on_cpu
from treadle.array.elementwise import divide
from treadle.array.lazy import Array, Operand
from treadle.array.lowering import axis_of, given, known_shape
from treadle.array.manipulation import along, roll
from treadle.array.node import problem_of

# fmt: off
__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft", "irfftn", "rfft",
    "rfftfreq", "rfftn",
]
# fmt: on
_HALF = ("rfft", "ihfft")
"""Transforms of real numbers, whose second half says nothing new."""
_FROM_HALF = ("irfft", "hfft")
Transform = Callable[..., Array]


def _transform(function: str) -> Transform:
    def apply(x: Operand, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
        x = given(x)
        axis = axis_of(axis, x.ndim)
        size = known_shape(x, function)[axis]
        points = n if n is not None else 2 * (size - 1) if function in _FROM_HALF else size
        if points < 1:
            raise problem_of(f"{function} of {points} points")
        if norm not in ("backward", "ortho", "forward"):
            raise problem_of(f"{function} has the norms backward, ortho and forward, not {norm!r}")
        made = points // 2 + 1 if function in _HALF else points
        dtype = getattr(np.fft, function)(np.ones(2, x.dtype)).dtype
        return along(function, (x,), axis, made, dtype, n=points, norm=norm)

    apply.__name__ = apply.__qualname__ = function
    apply.__doc__ = f"NumPy's {function}, along one axis."
    return apply


fft, ifft = _transform("fft"), _transform("ifft")
rfft, irfft = _transform("rfft"), _transform("irfft")
hfft, ihfft = _transform("hfft"), _transform("ihfft")


def _several(name: str, outer: Transform, last: Transform, last_first: bool) -> Transform:
    """`last` along the last of the axes and `outer` along the others."""

    def apply(
        x: Operand, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
    ) -> Array:
        made = given(x)
        axes = list(axes) if axes is not None else list(range(-len(s), 0)) if s is not None else list(range(made.ndim))
        sizes: Sequence[int | None] = [None] * len(axes) if s is None else s
        if len(axes) != len(sizes) or not axes:
            raise problem_of(f"{name} along axes {tuple(axes)} with sizes {sizes}")
        steps: list[tuple[Transform, int, int | None]] = [
            (outer, axis, size) for axis, size in zip(axes[:-1], sizes, strict=False)
        ]
        steps.insert(0 if last_first else len(steps), (last, axes[-1], sizes[-1]))
        for transform, axis, size in steps:
            made = transform(made, n=size, axis=axis, norm=norm)
        return made

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"NumPy's {name}, one axis after the other."
    return apply


fftn, ifftn = _several("fftn", fft, fft, True), _several("ifftn", ifft, ifft, True)
rfftn, irfftn = _several("rfftn", fft, rfft, True), _several("irfftn", ifft, irfft, False)


@on_cpu
def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = float) -> Array:
    """The frequencies of a transform of `n` points that lie `d` apart."""
    places = arange(n, dtype=np.int64)
    return divide((places + n // 2) % n - n // 2, n * d).astype(dtype)


@on_cpu
def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = float) -> Array:
    return divide(arange(n // 2 + 1, dtype=np.int64), n * d).astype(dtype)


def _shifted(x: Operand, axes: Any, sign: int) -> Array:
    x = given(x)
    shape = known_shape(x, "a shift")
    along_axes = range(x.ndim) if axes is None else [axes] if isinstance(axes, int) else axes
    for axis in along_axes:
        half = shape[axis_of(axis, x.ndim)]
        x = roll(x, half // 2 if sign > 0 else -(half // 2), axis)
    return x


def fftshift(x: Operand, /, *, axes: Any = None) -> Array:
    """Frequency 0 moves to the middle."""
    return _shifted(x, axes, 1)


def ifftshift(x: Operand, /, *, axes: Any = None) -> Array:
    """What `fftshift` has moved moves back."""
    return _shifted(x, axes, -1)
