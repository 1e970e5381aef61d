"""The optimizers that a server computes: which of torch they are, their settings as numbers, and their states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, optim

from treadle.planner.errors import InputError
from treadle.planner.passes.server.problem import SETTINGS_NUMBERS, OptimizerName
from treadle.server.lamb import Lamb

CALLER = "treadle.server.attach"
ADAM_STATES = ("exp_avg", "exp_avg_sq")
STATE_NAMES: dict[OptimizerName, tuple[str, ...]] = {
    "mean": (),
    "sgd": ("momentum_buffer",),
    "nesterov": ("momentum_buffer",),
    "adam": ADAM_STATES,
    "lamb": ADAM_STATES,
}
"""States of an element on the server, by the names that torch gives them."""
REFUSED = {"amsgrad": "no maxima", "differentiable": "no graph of a step"}
"""Options of torch's optimizers that the server's lack, and what they lack."""


def name_of(optimizer: optim.Optimizer) -> OptimizerName:
    """The server's optimizer that does what `optimizer` does.

    Raises InputError for a class other than torch.optim.SGD, Adam, AdamW and treadle.server.Lamb, subclasses included,
    for options that the server lacks, and for groups of which only some have Nesterov momentum.
    """
    kind = type(optimizer)
    if kind not in (optim.SGD, optim.Adam, optim.AdamW, Lamb):
        found = f"found the optimizer {kind.__module__}.{kind.__qualname__}"
        raise InputError(f"{found}, expected torch.optim.SGD, Adam or AdamW, or treadle.server.Lamb", where=CALLER)
    for option, lack in REFUSED.items():
        if any(group.get(option) for group in optimizer.param_groups):
            raise InputError(f"found {option} in {kind.__name__}, expected none: a server keeps {lack}", where=CALLER)
    if kind is Lamb:
        return "lamb"
    if kind is not optim.SGD:
        return "adam"
    nesterov = {bool(group["nesterov"]) for group in optimizer.param_groups}
    if len(nesterov) > 1:
        raise InputError("found groups of SGD with nesterov and without, expected one of both", where=CALLER)
    return "nesterov" if nesterov == {True} else "sgd"


def numbers_of(optimizer: optim.Optimizer, group: Mapping[str, Any]) -> NDArray[np.float64]:
    """The settings of a group of parameters, in the order of the server: [numbers]."""
    beta1, beta2 = group.get("betas", (0.0, 0.0))
    decoupled = group.get("decoupled_weight_decay", isinstance(optimizer, optim.AdamW))
    found = (
        group["lr"],
        group.get("momentum", 0.0),
        group.get("dampening", 0.0),
        group["weight_decay"],
        beta1,
        beta2,
        group.get("eps", 0.0),
        group.get("maximize", False),
        group.get("nesterov", False),
        decoupled,
    )
    numbers = np.zeros(SETTINGS_NUMBERS)
    numbers[: len(found)] = [float(each) for each in found]
    return numbers


def server_state(name: OptimizerName, state: Mapping[str, Any]) -> tuple[int, list[Tensor | None]]:
    """Updates so far, and each state of a parameter as a server takes it; None for zeros."""
    tensors = [state.get(each) for each in STATE_NAMES[name]]
    if "step" in state:
        return int(state["step"]), tensors
    return int(any(each is not None for each in tensors)), tensors


def torch_state(
    name: OptimizerName, group: Mapping[str, Any], updates: int, tensors: list[Tensor]
) -> dict[str, Tensor]:
    """The state of a parameter as its optimizer of torch would have it after `updates` steps."""
    if not updates or (name in ("sgd", "nesterov") and not group["momentum"]):
        return {}
    found = dict(zip(STATE_NAMES[name], tensors, strict=True))
    return found if name in ("sgd", "nesterov") else {"step": torch.tensor(float(updates)), **found}
