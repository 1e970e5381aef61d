"""Wrappers of other tools around or inside a model.

A planned step calls the model's operators itself, so what a wrapper does in the model's `forward` would be left out:
the all-reduce of DistributedDataParallel, the all-gather of `fully_shard`, the kernels of `torch.compile`. Those that
work go around the planned module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from treadle.planner.errors import InputError


class _Wrapper(NamedTuple):
    package: str
    name: str
    """The class, or one that it inherits from."""
    what: str
    advice: str


_WRAPPERS = (
    _Wrapper(
        "torch", "DistributedDataParallel", "under DistributedDataParallel", "it goes around the planned module instead"
    ),
    _Wrapper("torch", "FSDPModule", "under fully_shard", "shard the planned module as one: fully_shard(planned)"),
    _Wrapper(
        "torch",
        "FullyShardedDataParallel",
        "under FullyShardedDataParallel",
        "it goes around the planned module instead, with use_orig_params=True",
    ),
    _Wrapper(
        "torch",
        "DataParallel",
        "under DataParallel",
        "use DistributedDataParallel, which goes around the planned module",
    ),
    _Wrapper("torch", "OptimizedModule", "under torch.compile", "a plan chooses the operators itself"),
    _Wrapper("deepspeed", "DeepSpeedEngine", "as a DeepSpeedEngine", "its optimizer and partitions are not planned"),
    _Wrapper("treadle", "PlannedModule", "as a planned module", "pass its `.model`"),
    _Wrapper("treadle", "FittedModule", "as a fitted module", "pass its `.model`"),
)


def require_unwrapped(model: nn.Module, where: str) -> None:
    """Raises InputError for a model with a wrapper around it or inside it whose work a planned step would leave out.

    These are `fully_shard`, FullyShardedDataParallel, DistributedDataParallel, DataParallel, DeepSpeed's engines,
    `torch.compile` and `Module.compile`, planned modules, and parameters that are a DTensor (tensor parallelism). The
    message names the module, and where the wrapper goes instead.
    """
    for name, module in model.named_modules():
        place = f"module {name!r}" if name else "the model"
        classes = {(cls.__module__.partition(".")[0], cls.__name__) for cls in type(module).__mro__}
        for wrapper in _WRAPPERS:
            if (wrapper.package, wrapper.name) in classes:
                raise InputError(f"found {place} {wrapper.what}, expected it plain; {wrapper.advice}", where=where)
        if getattr(module, "_compiled_call_impl", None) is not None:
            text = "expected it plain; a plan chooses the operators itself"
            raise InputError(f"found {place} compiled by .compile(), {text}", where=where)
    for name, tensor in model.named_parameters():
        if any(cls.__name__ == "DTensor" for cls in type(tensor).__mro__):
            text = "expected a whole tensor; a plan does not cover tensor parallelism"
            raise InputError(f"found parameter {name!r} as a DTensor, {text}", where=where)


def require_uncast(module: nn.Module, dtypes: set[str], where: str) -> None:
    """Raises InputError if `fully_shard` around `module` casts its parameters to a dtype that is none of `dtypes`,
    those of the plan."""
    state_of: Callable[[], Any] = getattr(module, "_get_fsdp_state", lambda: None)
    cast: torch.dtype | None = getattr(getattr(state_of(), "_mp_policy", None), "param_dtype", None)
    if cast is not None and (word := str(cast).removeprefix("torch.")) not in dtypes:
        text = f"found MixedPrecisionPolicy(param_dtype={cast}) in fully_shard, expected parameters of the plan's"
        advice = f"leave it out, capture with --autocast {word} and call under torch.autocast"
        raise InputError(f"{text} {', '.join(sorted(dtypes))}; {advice}", where=where)
