"""LAMB as an optimizer of PyTorch that computes what the server does: algorithm 2 of "Large Batch Optimization for Deep
Learning: Training BERT in 76 minutes"."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from treadle.planner.errors import InputError

LANES = ROWS = 64
"""Squares are added row by row, then the lanes of a row are folded: in the order of treadle_server_kernels.h."""
CHUNK_BYTES = 32 << 10


class Lamb(Optimizer):
    """`lr` times the ratio of the norms of a parameter and of its direction is the step; the decay belongs to the
    direction. Norms are added up over chunks of `chunk_bytes`, those of the server's plan, for the same bits.

    Parameters are float32 with dense gradients. Raises InputError for others, and for settings out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
            if not 0 <= value < math.inf:
                raise InputError(f"found {value:g}, expected 0 or more", where=name)
        for value in betas:
            if not 0 <= value < 1:
                raise InputError(f"found {value:g}, expected 0 or more and less than 1", where="betas")
        if chunk_bytes < LANES or chunk_bytes % LANES:
            raise InputError(f"found {chunk_bytes}, expected a multiple of {LANES}", where="chunk_bytes")
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, {**settings, "chunk_bytes": chunk_bytes})

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step; the loss of `closure`, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    if parameter.dtype != torch.float32 or parameter.grad.is_sparse:
                        raise InputError(
                            "found another parameter, expected float32 with a dense gradient", where="Lamb"
                        )
                    _step(parameter, group, self.state[parameter])
        return loss


def _step(weight: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
    if not state:
        state["step"] = torch.tensor(0.0)
        state["exp_avg"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
        state["exp_avg_sq"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
    state["step"] += 1
    assert weight.grad is not None
    gradient = -weight.grad if group["maximize"] else weight.grad
    (beta1, beta2), update = group["betas"], state["step"].item()
    first, second = state["exp_avg"], state["exp_avg_sq"]
    first.lerp_(gradient, 1 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    divisor = (second.sqrt() / (1 - beta2**update) ** 0.5).add_(group["eps"])
    direction = (first / (1 - beta1**update)).div_(divisor)
    if group["weight_decay"] != 0:
        direction.add_(weight, alpha=group["weight_decay"])
    chunk = group["chunk_bytes"] // weight.element_size()
    weights, directions = square_sum(weight, chunk), square_sum(direction, chunk)
    ratio = math.sqrt(weights) / math.sqrt(directions) if weights > 0 and directions > 0 else 1.0
    weight.add_(direction, alpha=-(group["lr"] * ratio))


def square_sum(values: Tensor, chunk: int) -> float:
    """The sum of squares of `values`, float32, in double: of each chunk of as many elements, chunks one after the
    other."""
    size, chunks = values.numel(), -(-values.numel() // chunk)
    rows = min(ROWS, -(-chunk // LANES))
    leaves = -(-chunk // (rows * LANES))
    squares = torch.zeros(chunks * chunk, dtype=torch.float64, device=values.device)
    squares[:size] = values.flatten().double().square_()
    padded = torch.zeros(chunks, leaves * rows * LANES, dtype=torch.float64, device=values.device)
    padded[:, :chunk] = squares.view(chunks, chunk)
    lanes = _in_order(padded.view(chunks, leaves, rows, LANES), 2)
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    total = 0.0
    for each in _in_order(lanes[..., 0], 1).tolist():
        total += each
    return total


def _in_order(values: Tensor, dimension: int) -> Tensor:
    """The sum along a dimension, from its first element on."""
    first, *others = values.unbind(dimension)
    total = first.clone()
    for each in others:
        total += each
    return total
