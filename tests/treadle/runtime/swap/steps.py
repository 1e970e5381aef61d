"""Small steps under swap plans that leave little room, for the tests of what runs them."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.models import masked_lm, moe, resnet50
from tests.planner.passes.swap.plans import decide, random_order
from tests.treadle.runtime.models import STEPS as OTHERS
from treadle.capture.costs import with_roofline
from treadle.capture.graph import capture
from treadle.capture.load import build_step
from treadle.capture.optimizer import with_optimizer
from treadle.codegen.swap.torch_swap import FILE_NAME, generate
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import Certificate, InputRef, Plan, Prediction, Provenance
from treadle.planner.documents.trace import Trace
from treadle.planner.passes.swap.arrays import arrays_of
from treadle.planner.passes.swap.check import check
from treadle.planner.passes.swap.decisions import SwapDecisions
from treadle.planner.passes.swap.early import last_writes, split
from treadle.planner.passes.swap.evaluate import decisions
from treadle.planner.passes.swap.extract import problem_from_trace
from treadle.planner.passes.swap.layout import Pool, least_pool, pool_bytes
from treadle.planner.passes.swap.problem import SwapMachine
from treadle.planner.passes.swap.two_pass import plan_pool
from treadle.runtime.swap.replay import replay
from treadle.runtime.swap.step import SwapStep, load_swap_step
from treadle.runtime.swap.swapped import SwappedStep

MACHINE = SwapMachine(memory_bytes=1, in_bandwidth=10**9, out_bandwidth=10**9, together=(5, 6), copy_ns=1000)


class Tiny(nn.Module):
    """A weight used twice, a buffer that changes, random numbers, a view as output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 16)
        self.norm, self.last = nn.BatchNorm1d(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(torch.tanh(self.second(F.relu(self.first(x)))), 0.2, self.training)
        return self.last(self.norm(self.second(x)))


def classify(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(x), labels)


def tiny() -> Any:
    return Tiny(), (torch.randn(8, 6), torch.randint(4, (8,))), classify


def outputs() -> Any:
    """No loss; for inference."""
    return Tiny(), (torch.randn(8, 6),)


STEPS: dict[str, Callable[[], Any]] = {**OTHERS, "tiny": tiny, "outputs": outputs, "moe": moe.tiny}
STEPS |= {"resnet": resnet50.tiny, "masked_lm": masked_lm.tiny}


@cache
def trace_of(name: str, optimizer: str | None = "sgd", mode: Any = "train") -> Trace:
    hardware = store.load(resources.locate("profiles", "cpu-2x2"), Hardware)
    trace = capture(STEPS[name], name, mode)
    return with_roofline(with_optimizer(trace, optimizer) if optimizer else trace, hardware)


@cache
def plan_of(
    name: str,
    optimizer: str | None = "sgd",
    mode: Any = "train",
    *,
    extra: int = 1,
    shuffled: bool = False,
    early: bool = False,
) -> Plan:
    """A checked plan in the least pool with `extra` objects more of each class, for the trace's order or a random
    one; with every copy out `early` that can be."""
    trace = trace_of(name, optimizer, mode)
    problem = problem_from_trace(trace, MACHINE)
    least = least_pool(problem)
    pool = Pool(least.classes, tuple(count + extra for count in least.counts))
    room = pool_bytes(problem.object_sizes, pool) + problem.scratch_bytes
    problem = msgspec.structs.replace(problem, machine=msgspec.structs.replace(MACHINE, memory_bytes=room))
    order = random_order(random.Random(1), problem) if shuffled else list(range(len(problem.ops)))
    decided = decide(problem, order, pool)
    if early:
        arrays = arrays_of(problem)
        nodes = plan_pool(arrays, order, pool)
        assert nodes is not None
        changed, copies = split(nodes, last_writes(arrays, nodes))
        decided = decisions(problem, arrays, order, changed, pool, early=copies)
    assert not check(decided)
    return plan_with(decided, trace)


def plan_with(decisions: SwapDecisions, trace: Trace) -> Plan:
    return Plan(
        version=1,
        inputs={"trace": InputRef(file="step.trace.json", digest=store.digest(trace))},
        decisions=decisions,
        prediction=Prediction(time_us=decisions.time_ns / 1000, peak_bytes=decisions.peak_bytes),
        certificate=Certificate(
            verdict="accepted", checker="test", objective=1, lower_bound=0, unit="ns", argument="none", gap=1,
            optimal=False,
        ),
        provenance=Provenance(tool="test", method="two-pass"),
    )  # fmt: skip


@cache
def step_of(name: str, optimizer: str | None = "sgd", mode: Any = "train", **changes: Any) -> SwapStep:
    plan = plan_of(name, optimizer, mode, **changes)
    return load_swap_step(generate(plan, trace_of(name, optimizer, mode))[FILE_NAME])


def batch(name: str, seed: int) -> tuple[Tensor, ...]:
    torch.manual_seed(seed)
    return build_step(STEPS[name], name).inputs


def model_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    return build_step(STEPS[name], name).model


class Free:
    """The same step without a limit on memory."""

    def __init__(self, name: str, step: SwapStep) -> None:
        self.name, self.step = name, step
        self.model = model_of(name)
        own = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        self.persistent = {key: own[name].detach() for name, key in (step.parameters | step.buffers).items()}
        self.persistent.update({key: step.storages[key].empty("cpu").zero_() for key in step.optimizer.values()})

    def run(self, seed: int) -> tuple[list[Tensor], dict[str, Tensor]]:
        inputs = batch(self.name, seed)
        torch.manual_seed(seed)
        return replay(self.step, self.persistent, inputs, torch.device("cpu"))


def differing(swapped: SwappedStep, free: Free, iterations: int = 3) -> list[str]:
    """What is not equal to the last bit after any iteration."""
    found = []
    for seed in range(iterations):
        inputs = batch(free.name, seed)
        torch.manual_seed(seed)
        outputs, gradients = swapped.run(*inputs)
        expected, wanted = free.run(seed)
        swapped.synchronize()
        found += [f"{seed}: output {i}" for i, x in enumerate(expected) if not torch.equal(outputs[i], x)]
        found += [f"{seed}: gradient {k}" for k, x in wanted.items() if not torch.equal(gradients[k], x)]
        held = swapped.memory.host
        found += [f"{seed}: {key}" for key, x in free.persistent.items() if not torch.equal(held[key], x)]
    return found
