"""A mixture-of-experts block with a fixed expert capacity, so that every shape is known ahead of time.

Routing and the load-balancing loss follow "Switch Transformers: Scaling to Trillion Parameter Models with Simple and
Efficient Sparsity" (equations 1 to 6), generalised to the k best experts with weights renormalised over them; the
experts are the gated feed-forward networks of "Mixtral of Experts" (section 2.1). A token that finds its expert full is
dropped there and reaches the output through the shortcut only.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .common import Step


class MixtureOfExperts(nn.Module):
    """Tokens [N, T, width] to (output [N, T, width], load-balancing loss, a scalar).

    Each expert takes at most `ceil(capacity_factor * k * N * T / experts)` tokens, the earliest ones first.
    """

    def __init__(self, width: int, hidden: int, experts: int, k: int, capacity_factor: float) -> None:
        super().__init__()
        self.experts, self.k, self.capacity_factor = experts, k, capacity_factor
        self.router = nn.Linear(width, experts, bias=False)
        self.gate = nn.Parameter(torch.empty(experts, width, hidden))
        self.up = nn.Parameter(torch.empty(experts, width, hidden))
        self.down = nn.Parameter(torch.empty(experts, hidden, width))
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x = tokens.flatten(0, 1)
        capacity = math.ceil(self.capacity_factor * self.k * x.shape[0] / self.experts)
        probabilities = self.router(x).softmax(-1)
        weights, chosen = probabilities.topk(self.k, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)

        # The place of each (token, choice) in its expert's queue; those beyond the capacity share one spare row.
        assigned = F.one_hot(chosen.flatten(), self.experts)
        place = (assigned.cumsum(0) * assigned).sum(-1) - 1
        spare = self.experts * capacity
        row = torch.where(place < capacity, chosen.flatten() * capacity + place, spare)

        sent = x.repeat_interleave(self.k, dim=0)
        queues = torch.zeros(spare + 1, x.shape[1], dtype=x.dtype, device=x.device).index_add(0, row, sent)
        queues = queues[:spare].view(self.experts, capacity, -1)
        worked = torch.bmm(F.silu(torch.bmm(queues, self.gate)) * torch.bmm(queues, self.up), self.down)
        worked = F.pad(worked.flatten(0, 1), (0, 0, 0, 1))
        output = (worked[row].view(-1, self.k, x.shape[1]) * weights.unsqueeze(-1)).sum(1)

        fraction = assigned.view(-1, self.k, self.experts)[:, 0].to(x.dtype).mean(0)
        balance = self.experts * (fraction * probabilities.mean(0)).sum()
        return tokens + output.view_as(tokens), balance


def regression_loss(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """Mean squared error plus 0.01 times the load-balancing loss (Switch Transformers, section 2.2)."""
    output, balance = model(tokens)
    return F.mse_loss(output, targets) + 0.01 * balance


def step(model: nn.Module, width: int, batch: int, tokens: int) -> Step:
    """One training step on random activations."""
    return model, (torch.randn(batch, tokens, width), torch.randn(batch, tokens, width)), regression_loss


def mixtral(*, batch: int = 1, tokens: int = 4096, capacity_factor: float = 1.25) -> Step:
    """One layer's experts of Mixtral 8x7B: 8 experts, 2 a token, 1,409,318,912 parameters."""
    return step(MixtureOfExperts(4096, 14336, 8, 2, capacity_factor), 4096, batch, tokens)


def tiny(*, batch: int = 2, tokens: int = 16, capacity_factor: float = 1.25) -> Step:
    """4 experts, 2 a token, 16 wide."""
    return step(MixtureOfExperts(16, 32, 4, 2, capacity_factor), 16, batch, tokens)
