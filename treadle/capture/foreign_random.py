"""Random numbers that do not come from PyTorch: a trace has no op for them, so each would be the one of the capture."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from treadle.planner.errors import InputError


@contextmanager
def require_no_draws(model: nn.Module, where: str) -> Iterator[None]:
    """Raises InputError, naming the generator, where the block draws numbers from Python's or NumPy's, or from one that
    a module holds as an attribute."""
    before = _states(model)
    yield
    for name, state in _states(model).items():
        if before.get(name, state) != state:
            raise InputError(
                f"the step draws random numbers from {name}, which would be the same in every step of the plan; draw "
                "them with PyTorch, or outside the step",
                where=where,
            )


def _states(model: nn.Module) -> dict[str, bytes]:
    """The states of generators by name."""
    numpy: Any = sys.modules.get("numpy")
    found: dict[str, Any] = {"Python's module random": random.getstate()}
    if numpy:
        found["numpy.random"] = numpy.random.get_state()
    kinds = (random.Random, *((numpy.random.Generator, numpy.random.RandomState) if numpy else ()))
    for prefix, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, kinds) and not isinstance(value, random.SystemRandom):
                found[f"the attribute {prefix + '.' if prefix else ''}{key}"] = value
    return {name: pickle.dumps(state) for name, state in found.items()}
