"""Operators stay whole where PyTorch runs them by one kernel.

AOT autograd traces with PyTorch's Python dispatcher, for which some operators (interpolation, shrinkage, margin losses)
are registered as compositions of smaller ones. A compiler fuses those again. A step that runs operator by operator
does not: bilinear upsampling becomes 60 calls in place of two, with their intermediate values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._C import DispatchKey
from torch._higher_order_ops import effects
from torch._ops import OpOverload, OpOverloadPacket

COMPOSED = frozenset(
    {
        # The kernels write running statistics, which their schema does not say; the compositions say it.
        "native_batch_norm",
        "cudnn_batch_norm",
        # The CPU has no kernel that keeps a mask of one byte for each element.
        "dropout",
        # The kernel reads values of its input.
        "one_hot",
        # The fused kernels of the CPU keep a workspace of unknown size, see `treadle.capture.recurrent`.
        "lstm",
        "gru",
        "rnn_tanh",
        "rnn_relu",
    }
)
"""Operators whose composition in Python is needed; all others are dispatched as in a plain step."""


@contextmanager
def whole_operators() -> Iterator[None]:
    """Within this block the Python dispatcher takes ATen's own kernels and derivatives, as plain PyTorch does."""
    hidden = [
        (overload, key, overload.py_kernels.pop(key))
        for overload in _overloads()
        for key in (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)
        if key in overload.py_kernels
    ]
    for overload, _, _ in hidden:
        overload._dispatch_cache.clear()
    try:
        yield
    finally:
        for overload, key, kernel in hidden:
            overload.py_kernels[key] = kernel
            overload._dispatch_cache.clear()


@contextmanager
def without_checks() -> Iterator[None]:
    """Within this block `torch.linalg` checks no result: the check reads values and makes no tensor.

    PyTorch holds its place among the operators with tokens, which plain operators do not have. Without it `inv`,
    `cholesky` and `solve` of a singular matrix make inf or NaN, as `inv_ex`, `cholesky_ex` and `solve_ex` do.
    """
    check = torch.ops.aten._linalg_check_errors.default
    effect = _effect(check)
    if effect is None:
        yield
        return
    effects._register_effectful_op(check, None)
    try:
        yield
    finally:
        effects._register_effectful_op(check, effect)


def _effect(operator: OpOverload) -> effects._EffectType | None:
    """The effect whose order PyTorch keeps; None where it has none. Older versions than 2.10 have no such function, and
    no effect of the operators of this file."""
    found = getattr(effects, "_get_effect", None)
    return None if found is None else found(operator)


def _overloads() -> Iterator[OpOverload]:
    """ATen's overloads so far in use; one that has a Python kernel is among them."""
    for packet in list(vars(torch.ops.aten).values()):
        if isinstance(packet, OpOverloadPacket) and packet.__name__ not in COMPOSED:
            yield from (getattr(packet, name) for name in packet.overloads())
