"""Memory plans on the CPU, compared with PyTorch's own means: measured peak, step time and gradients.

Peers: plain PyTorch (eager), `torch.utils.checkpoint` around every block, and PyTorch's own planner, the min-cut
partitioner of AOT autograd with its knapsack under `activation_memory_budget` (a share, not bytes). One meter for all:
`treadle.runtime.meter`, live bytes of all tensors, parameters and gradients included. All but the first two run their
operators from Python one by one and fuse nothing, so times compare the amount of work. Times are processor time of one
thread, which other work on the machine disturbs least.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks.common import Row, Table, progress
from benchmarks.memory.varied import Step
from treadle.capture.costs import with_measured_in_step
from treadle.capture.graph import capture
from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.documents.store import digest
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InfeasibleError, LimitError
from treadle.planner.graph.implementations import with_implementations
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.extract.problem import problem_from_trace
from treadle.planner.passes.memory.planning import Budget, MemoryOptions, plan_memory, with_budget
from treadle.runtime.memory.apply import apply
from treadle.runtime.meter import Meter

PYTORCH_BUDGETS = (1.0, 0.5, 0.3, 0.25, 0.1, 0.0)
SHARES = (Fraction(4, 5), Fraction(3, 5), Fraction(1, 2))
OPTIONS = MemoryOptions(time_limit_s=15.0, workers=2)
REPEATS = 11
MIB = 2**20
NOTES = (
    "CPU ms: median processor time of forward and backward. predicted time x: the plan's time over store-all's.",
    "treadle, as PEER: planned for a budget equal to the peer's measured peak; peak / peer and time / peer against it.",
)


class Attention(nn.Module):
    """Causal attention written out, [N, T, width] to [N, T, width]: the [T, T] matrices are tensors of the step."""

    def __init__(self, width: int, heads: int, tokens: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("mask", torch.ones(tokens, tokens, dtype=torch.bool).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)).masked_fill(self.mask, -math.inf)
        return self.output((weights.softmax(-1) @ v).transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, tokens: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, tokens)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Chain(nn.Module):
    """First, blocks, last; with `each_block` every block is under torch.utils.checkpoint."""

    def __init__(self, first: nn.Module, blocks: list[nn.Module], last: nn.Module, *, each_block: bool) -> None:
        super().__init__()
        self.first, self.blocks, self.last, self.each_block = first, nn.ModuleList(blocks), last, each_block

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.each_block else block(x)
        return self.last(x)


class Embedding(nn.Module):
    def __init__(self, vocabulary: int, tokens: int, width: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)

    def forward(self, text: Tensor) -> Tensor:
        return self.words(text) + self.places.weight[: text.shape[1]]


def loss(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(x).flatten(0, -2), labels.flatten())


def gpt(each_block: bool = False) -> Step:
    """4 layers, width 256, 4 heads, 128 tokens, batch 8, 1000 words; 3.7 million parameters."""
    torch.manual_seed(0)
    width, tokens, words = 256, 128, 1000
    blocks: list[nn.Module] = [Block(width, 4, tokens) for _ in range(4)]
    last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, words))
    model = Chain(Embedding(words, tokens, width), blocks, last, each_block=each_block)
    return model, (torch.randint(words, (8, tokens)), torch.randint(words, (8, tokens))), loss


def convnet(each_block: bool = False) -> Step:
    """6 blocks of 3x3 convolution, batch norm and ReLU, twice halving the side; 32 images of 64x64.

    Without running statistics: AOT autograd alone cannot train a model whose saved buffers it writes back.
    """
    torch.manual_seed(0)
    blocks: list[nn.Module] = []
    inputs = 16
    for outputs in (16, 16, 32, 32, 64, 64):
        stride = 2 if outputs > inputs else 1
        convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        blocks.append(nn.Sequential(convolution, nn.BatchNorm2d(outputs, track_running_stats=False), nn.ReLU()))
        inputs = outputs
    last = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    model = Chain(nn.Conv2d(3, 16, 3, padding=1), blocks, last, each_block=each_block)
    return model, (torch.randn(32, 3, 64, 64), torch.randint(10, (32,))), loss


@dataclass
class Variant:
    """One implementation of the training step. `step` computes the loss; `backward` is called on that."""

    name: str
    model: nn.Module
    step: Callable[[], Tensor]
    plan: Plan | None = None
    peer: Variant | None = None
    peak_bytes: int = 0
    times: list[float] = field(default_factory=list)

    def once(self) -> float:
        """Processor seconds of forward and backward, from no gradients."""
        self.model.zero_grad(set_to_none=True)
        start = time.process_time()
        self.step().backward()
        return time.process_time() - start

    def measure_peak(self, inputs: tuple[Tensor, ...]) -> Variant:
        self.once()  # compiles
        self.model.zero_grad(set_to_none=True)
        with Meter(self.model, inputs) as meter:
            self.step().backward()
        self.peak_bytes = meter.peak_bytes
        return self

    @property
    def seconds(self) -> float:
        return statistics.median(self.times)


def in_turns(variants: list[Variant], repeats: int) -> None:
    """Time all variants, one run of each after the other."""
    for _ in range(repeats):
        for variant in variants:
            variant.times.append(variant.once())


def measured_trace(make: Callable[..., Step], name: str) -> Trace:
    """One training step with every implementation, each timed inside the step."""
    return with_measured_in_step(with_implementations(capture(make, name, "train"), to_measure=True))


def tables() -> Iterator[Table]:
    """Peak bytes, step time and gradients of planned steps, compared with eager, checkpoint and PyTorch's budget."""
    torch.set_num_threads(1)
    yield compared("4-layer GPT, batch 8, 128 tokens", gpt)
    yield compared("Convolutional network, 32 images of 64x64", convnet)


def compared(title: str, make: Callable[..., Step]) -> Table:
    """All variants of one step, measured in turns."""
    model, inputs, loss_of = make()
    progress(f"memory.execution: {title}: peers")
    trace = measured_trace(make, title)
    variants = list(peers(make, model, inputs, loss_of))
    for variant in variants:
        variant.measure_peak(inputs)
    eager = variants[0]
    skipped = []
    wanted: list[tuple[str, Budget, Variant | None]] = [
        (f"treadle, {float(share)}x of plain PyTorch", share, None) for share in SHARES
    ]
    lower = {peer.peak_bytes: peer for peer in reversed(variants) if peer.peak_bytes < eager.peak_bytes}
    wanted += [(f"treadle, as {peer.name}", size, peer) for size, peer in sorted(lower.items(), reverse=True)]
    for name, budget, peer in wanted:
        progress(f"memory.execution: {title}: {name}")
        try:
            plan = memory_plan(trace, budget)
        except (InfeasibleError, LimitError) as error:
            skipped.append(f"{name}: {error}")
            continue
        variants.append(planned(name, model, inputs, plan, trace, peer).measure_peak(inputs))
    in_turns(variants, REPEATS)
    reference = gradients(eager)
    rows = [row(variant, eager, reference) for variant in variants]
    return Table(title, rows, (*NOTES, *skipped))


def peers(
    make: Callable[..., Step], model: nn.Module, inputs: tuple[Tensor, ...], loss_of: Callable[..., Tensor]
) -> Iterator[Variant]:
    yield Variant("eager", model, lambda: loss_of(model, *inputs))
    checkpointed = make(True)[0]
    yield Variant("checkpoint per block", checkpointed, lambda: loss_of(checkpointed, *inputs))
    for budget in PYTORCH_BUDGETS:
        own = copy.deepcopy(model)
        yield Variant(f"PyTorch budget {budget}", own, partitioned(own, inputs, loss_of, budget))


def partitioned(
    model: nn.Module, inputs: tuple[Tensor, ...], loss_of: Callable[..., Tensor], budget: float, solver: str = "dp"
) -> Callable[[], Tensor]:
    """The step through AOT autograd and PyTorch's partitioner; freed values are dropped as soon as they can be."""
    from functorch.compile import aot_module, min_cut_rematerialization_partition
    from torch._dynamo.backends.debugging import boxed_nop
    from torch._functorch import config

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *arguments: Tensor) -> Tensor:
            return loss_of(self.model, *arguments)

    compiled = aot_module(WithLoss(), fw_compiler=boxed_nop, partition_fn=min_cut_rematerialization_partition)

    def step() -> Tensor:
        with config.patch(activation_memory_budget=budget, activation_memory_budget_solver=solver):
            result: Tensor = compiled(*inputs)
        return result

    return step


def memory_plan(trace: Trace, budget: Budget, options: MemoryOptions = OPTIONS) -> Plan[MemoryDecisions]:
    """The plan of a traced step within `budget`."""
    inputs = {"trace": InputRef(file="trace", digest=digest(trace))}
    return plan_memory(with_budget(problem_from_trace(trace), budget), options=options, inputs=inputs)


def planned(
    name: str, model: nn.Module, inputs: tuple[Tensor, ...], plan: Plan, trace: Trace, peer: Variant | None = None
) -> Variant:
    """The step under a plan."""
    module = apply(copy.deepcopy(model), plan, trace)
    return Variant(name, module, lambda: module(*inputs), plan, peer)


def gradients(variant: Variant) -> list[Tensor]:
    variant.once()
    return [parameter.grad for parameter in variant.model.parameters() if parameter.grad is not None]


def difference(variant: Variant, reference: list[Tensor]) -> str:
    """Whether the gradients equal `reference` bit by bit, or their largest difference relative to its largest value."""
    pairs = list(zip(reference, gradients(variant), strict=True))
    if all(torch.equal(a, b) for a, b in pairs):
        return "bit-equal"
    scale = max(float(gradient.abs().max()) for gradient in reference)
    return f"within {max(float((a - b).abs().max()) for a, b in pairs) / scale:.0e}"


def row(variant: Variant, eager: Variant, reference: list[Tensor]) -> Row:
    result: dict[str, Any] = {
        "step": variant.name,
        "peak MiB": variant.peak_bytes / MIB,
        "peak / eager": variant.peak_bytes / eager.peak_bytes,
        "CPU ms": variant.seconds * 1e3,
        "time / eager": variant.seconds / eager.seconds,
        "gradients": difference(variant, reference),
    }
    if variant.peer is not None:
        result["peak / peer"] = variant.peak_bytes / variant.peer.peak_bytes
        result["time / peer"] = variant.seconds / variant.peer.seconds
    if variant.plan is not None:
        decisions = variant.plan.decisions
        result["peak / budget"] = variant.peak_bytes / decisions.problem.budget_bytes
        result["peak / predicted"] = variant.peak_bytes / decisions.exact_peak_bytes
        result["predicted time x"] = decisions.objective_ns / decisions.store_all_ns
    return result
