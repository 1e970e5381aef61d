"""Which gradients differ from plain PyTorch's by more than rounding.

Each is compared relative to its own largest value, as layers of one model may have gradients of very different sizes.
One that is nothing but rounding, such as that of a bias before a batch norm, exceeds that: then plain PyTorch's own
rounding decides, which is its distance from the same step in double precision. A step that draws random numbers draws
others there, so it is repeated with parameters that are off by one rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from treadle.capture.load import ModelStep
from treadle.runtime.comparison import difference, largest, relative_tolerance
from treadle.runtime.strides import copied

NEAR = 8
"""Winograd's and Fourier transforms round several times as much as a direct convolution."""
NOTHING = 0.01
"""Tolerances of the largest gradient of all, within which a difference is rounding. A gradient of one element that is
nothing else may be 0 in plain PyTorch by chance."""

Pairs = Mapping[str, tuple[Tensor | None, Tensor | None]]
Backward = Callable[[Any], None]


def wrong_gradients(
    pairs: Pairs, step: ModelStep, seed: int, backward: Backward, autocast: AbstractContextManager[Any], *, narrow: bool
) -> tuple[list[str], float]:
    """The names of those of `pairs`, plain PyTorch's gradient and another, that differ by more than rounding, and plain
    PyTorch's largest distance from double precision, 0 where that was not asked for or is not known.

    `step` has the model whose step plain PyTorch made from `seed` under `autocast`; names are those of parameters, and
    `input N`. narrow: it computes in types narrower than its parameters.
    """
    tolerance = relative_tolerance(step.model.parameters(), narrow)
    least = NOTHING * tolerance * max((largest(a) for a, _ in pairs.values() if a is not None), default=0.0)
    allowed = {name: max(least, tolerance * largest(a)) if a is not None else 0.0 for name, (a, _) in pairs.items()}
    doubtful = [name for name, (a, b) in pairs.items() if not difference(a, b) <= allowed[name]]
    if not doubtful:
        return [], 0.0
    exact = in_double(step, seed, backward)
    known = exact or _off_by_rounding(step, seed, backward, autocast, narrow=narrow)
    own = {name: difference(a, known.get(name)) for name, (a, _) in pairs.items()} if known else {}
    wrong = [
        name
        for name in doubtful
        if not known or not difference(pairs[name][1], known.get(name)) <= max(allowed[name], NEAR * own[name])
    ]
    return wrong, max(own.values(), default=0.0) if exact else 0.0


def in_double(step: ModelStep, seed: int, backward: Backward) -> dict[str, Tensor | None]:
    """Gradients of parameters and inputs, by name, of the step that plain PyTorch just made, in double precision.

    In a deep network with few samples single precision alone can put gradients off by some percent; then other kernels
    are right if they come as near to these as plain PyTorch does. Empty where the step cannot be made in double
    precision, or draws random numbers, which would be others there.
    """
    try:
        model = copy.deepcopy(step.model).double()
        inputs = [copied(x).double() if x.is_floating_point() else copied(x) for x in step.inputs]
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        found = _gradients(step, model, inputs, backward)
    except (RuntimeError, TypeError, ValueError):
        return {}
    drawn = not torch.equal(before, torch.get_rng_state())
    return {} if drawn else found


def _off_by_rounding(
    step: ModelStep, seed: int, backward: Backward, autocast: AbstractContextManager[Any], *, narrow: bool
) -> dict[str, Tensor | None]:
    """The same in the step's own precision and with its random numbers, half of the numbers in its parameters off
    by one rounding."""
    try:
        model, generator = copy.deepcopy(step.model), torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                eps = torch.finfo(torch.bfloat16 if narrow else parameter.dtype).eps
                chosen = torch.randint(2, parameter.shape, generator=generator).to(parameter.device)
                parameter.add_(parameter * chosen * eps)
        torch.manual_seed(seed)
        with autocast:
            return _gradients(step, model, [copied(x) for x in step.inputs], backward)
    except (RuntimeError, TypeError, ValueError):
        return {}


def _gradients(step: ModelStep, model: nn.Module, inputs: list[Tensor], backward: Backward) -> dict[str, Tensor | None]:
    for parameter in model.parameters():
        parameter.grad = None
    for mine, theirs in zip(inputs, step.inputs, strict=True):
        mine.requires_grad_(theirs.requires_grad)
    backward(step.with_inputs(inputs).run(model))
    found = {f"input {index}": tensor.grad for index, tensor in enumerate(inputs)}
    return found | {name: parameter.grad for name, parameter in model.named_parameters()}
