"""Memory plans of deep stacks of equal blocks at tight budgets: overhead, proven bound and processor time.

GPT-2 with the blocks of XL in 24 and 96 layers (8 texts of 1,024 tokens) and a network of the sizes of Llama-7B (4 of
2,048), priced by the roofline of a P100. Budgets are shares of plain PyTorch's peak, as on the command line; the first
of each network is just above the need of one operator of its loss.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.common import Row, Table, progress
from benchmarks.memory.networks import problem_from
from benchmarks.memory.planning import percent
from examples.models import gpt2
from examples.models.common import Step
from treadle.planner.passes.memory.bound import least_time
from treadle.planner.passes.memory.planning import plan_memory, with_budget
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.search.attempts import MemoryOptions

SHARES = {
    "GPT-2, 96 layers": ("0.255", "0.284", "0.3", "0.35", "0.5"),
    "GPT-2, 24 layers": ("0.319", "0.35", "0.5"),
    "Llama-7B's sizes": ("0.457", "0.5"),
}
SECONDS = 300.0
"""Wall clock of the search for each point."""


class Norm(nn.Module):
    """Root mean square normalisation over the last dimension."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class Layer(nn.Module):
    """Attention with rotary positions and a gated feed-forward network, [N, T, width] to the same."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = Norm(width), Norm(width)
        self.q, self.k, self.v, self.output = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        y = self.norm1(x)
        shape = (batch, tokens, self.heads, width // self.heads)
        q, k, v = (part(y).view(shape).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(turned(q, cos, sin), turned(k, cos, sin), v, is_causal=True)
        x = x + self.output(y.transpose(1, 2).reshape(batch, tokens, width))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions, [N, heads, T, width / heads]."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Llama(nn.Module):
    """Tokens [N, T] to logits [N, T, vocabulary]."""

    def __init__(self, layers: int, width: int, heads: int, hidden: int, vocabulary: int, tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads, hidden) for _ in range(layers))
        self.norm, self.output = Norm(width), nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("cos", torch.ones(tokens, width // heads))
        self.register_buffer("sin", torch.ones(tokens, width // heads))

    def forward(self, text: Tensor) -> Tensor:
        x = self.embedding(text)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.output(self.norm(x))


def llama(layers: int = 32, batch: int = 4, tokens: int = 2048) -> Step:
    """One training step at the sizes of Llama-7B, on random text."""
    text = torch.randint(32000, (batch, tokens))
    return Llama(layers, 4096, 32, 11008, 32000, tokens), (text, text.clone()), gpt2.language_model_loss


def problem_of(name: str) -> MemoryProblem:
    """The memory problem of one of the networks."""
    if name.startswith("Llama"):
        return problem_from(llama, name)
    config = replace(gpt2.XL, layers=int(name.split()[1]))
    return problem_from(lambda: gpt2.step(config, 8, 1024), name)


def tables() -> Iterator[Table]:
    """Overhead, bound and processor time of plans of 24 to 96 equal blocks at tight budgets."""
    for name, shares in SHARES.items():
        problem = problem_of(name)
        rows = []
        for share in shares:
            progress(f"memory.tight: {name} at {share}x")
            rows.append(point(problem, Fraction(share)))
        yield Table(
            f"{name}: {len(problem.fwd)} forward and {len(problem.bwd)} backward nodes",
            rows,
            ("Overheads in % of every operator run once; the gap in % of the plan's time.",),
        )


def point(problem: MemoryProblem, share: Fraction) -> Row:
    """One network at one budget, `share` of plain PyTorch's peak."""
    began, used = time.perf_counter(), _cpu_s()
    plan = plan_memory(with_budget(problem, share), options=MemoryOptions(time_limit_s=SECONDS))
    proof, least = plan.certificate, least_time(problem)
    return {
        "budget x": float(share),
        "budget GiB": with_budget(problem, share).budget_bytes / 2**30,
        "overhead %": percent(int(proof.objective), least),
        "bound %": percent(int(proof.lower_bound), least),
        "gap %": 100 * proof.gap,
        "CPU s": _cpu_s() - used,
        "search s": time.perf_counter() - began,
        "result": f"{plan.provenance.method}{', limit' if plan.provenance.limit_fired else ''}",
    }


def _cpu_s() -> float:
    """Processor time of this process and its children that ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
