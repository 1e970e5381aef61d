"""`fully_shard` and FSDP around a planned model: two processes over gloo."""

from __future__ import annotations

import copy
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from examples.models import gpt2
from tests.planner.plans import memory_plan
from tests.treadle.runtime.models import STEPS, plan_of, trace_of
from treadle.capture.costs import with_roofline
from treadle.capture.graph import capture
from treadle.capture.load import autocast_to
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.trace import Trace
from treadle.planner.passes.memory.planning import MemoryOptions
from treadle.probe.resolve import load_hardware
from treadle.runtime.launch import launch
from treadle.runtime.memory.apply import apply
from treadle.runtime.meter import allocator_peak

WORLD = 2
CLIP = 0.5


def deep() -> tuple[nn.Module, tuple[torch.Tensor, ...], object]:
    """A step whose activations take more than its parameters."""
    return gpt2.step(gpt2.Config(layers=3, heads=2, width=64, vocabulary=128, context=64), 8, 64)


def documents(folder: str) -> tuple[Plan, Trace]:
    return store.load(Path(folder) / "plan.json", Plan), store.load(Path(folder) / "trace.json", Trace)


def save(plan: Plan, trace: Trace, folder: Path) -> None:
    store.save(plan, folder / "plan.json")
    store.save(trace, folder / "trace.json")


def train(rank: int, world: int, folder: str, options: dict[str, object]) -> dict[str, object]:
    """Three steps with two micro-batches each, planned under `fully_shard` and plain with averaged gradients: losses of
    both, and the largest difference of a parameter afterwards. Shards lie elsewhere in memory, for which some CPUs
    round matrix products differently; Adam would divide that by the size of the smallest gradients."""
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    model, _, loss = STEPS["gpt2"]()
    plain = copy.deepcopy(model)
    planned = fully_shard(apply(model, *documents(folder)), mesh=mesh, **options)
    optimizers = [torch.optim.SGD(module.parameters(), 0.1, momentum=0.9) for module in (planned, plain)]
    losses = []
    for step in range(3):
        for micro in range(2):
            torch.manual_seed(100 * step + 10 * micro + rank)
            _, inputs, _ = STEPS["gpt2"]()
            planned.set_requires_gradient_sync(micro == 1)
            values = planned(*inputs), loss(plain, *inputs)
            for value in values:
                value.backward()
            losses.append([value.item() for value in values])
        for parameter in plain.parameters():
            distributed.all_reduce(parameter.grad)
            parameter.grad /= world
        for module, optimizer in zip((planned, plain), optimizers, strict=True):
            nn.utils.clip_grad_norm_(module.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
    pairs = list(zip(planned.parameters(), plain.parameters(), strict=True))
    whole = get_model_state_dict(planned, options=StateDictOptions(full_state_dict=True))
    return {
        "losses": losses,
        "difference": max((a.full_tensor() - b).abs().max().item() for a, b in pairs),
        "sharded": [a.to_local().numel() < b.numel() for a, b in pairs],
        "names": sorted(whole) == sorted(plain.state_dict()) if rank == 0 else True,
    }


def train_fsdp(rank: int, world: int, folder: str) -> float:
    """The largest difference of a parameter after one step under FullyShardedDataParallel and one of plain PyTorch."""
    torch.manual_seed(0)
    model, inputs, loss = STEPS["gpt2"]()
    plain = copy.deepcopy(model)
    planned = FullyShardedDataParallel(
        apply(model, *documents(folder)), use_orig_params=True, device_id=torch.device("cpu")
    )
    for module, call in ((planned, lambda: planned(*inputs)), (plain, lambda: loss(plain, *inputs))):
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        call().backward()
        optimizer.step()
    with FullyShardedDataParallel.summon_full_params(planned):
        pairs = zip(planned.parameters(), plain.parameters(), strict=True)
        return max((a - b).abs().max().item() for a, b in pairs)


def peaks(rank: int, world: int, folder: str) -> dict[str, int]:
    """Bytes that one step allocates at most beyond what exists before it: plain and planned, both under `fully_shard`
    as one."""
    mesh = init_device_mesh("cpu", (world,))
    found = {}
    for name in ("plain", "planned"):
        model, inputs, loss = deep()
        module = apply(model, *documents(folder)) if name == "planned" else model
        fully_shard(module, mesh=mesh)

        def step(module=module, inputs=inputs, loss=loss, name=name):
            value = module(*inputs) if name == "planned" else loss(module, *inputs)
            value.backward()
            module.zero_grad()

        step()
        found[name] = allocator_peak(step)
    return found


def under_autocast(rank: int, world: int, folder: str) -> list[list[float]]:
    """Losses of two steps under autocast to bfloat16: planned under `fully_shard`, and plain with averaged
    gradients."""
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    model, inputs, loss = STEPS["gpt2"]()
    plain = copy.deepcopy(model)
    planned = fully_shard(apply(model, *documents(folder)), mesh=mesh)
    optimizers = [torch.optim.SGD(module.parameters(), 0.1) for module in (planned, plain)]
    losses = []
    for _ in range(2):
        with autocast_to("bfloat16", "cpu"):
            values = planned(*inputs), loss(plain, *inputs)
        for value in values:
            value.backward()
        for parameter in plain.parameters():
            distributed.all_reduce(parameter.grad)
            parameter.grad /= world
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append([value.item() for value in values])
    return losses


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("sharded")
    save(plan_of("gpt2", Fraction(95, 100)), trace_of("gpt2"), place)
    return str(place)


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not distributed.is_gloo_available(), reason="this PyTorch has no gloo"),
]


@pytest.mark.parametrize("options", [{}, {"reshard_after_forward": True}], ids=["default", "resharded"])
def test_training_under_fully_shard_is_plain_data_parallel_training(folder, options):
    for found in launch(WORLD, train, (folder, options), timeout=120):
        for planned, plain in found["losses"]:
            assert planned == pytest.approx(plain, rel=1e-6)
        assert found["difference"] < 1e-6
        assert all(found["sharded"])
        assert found["names"]


def test_training_under_fsdp_is_plain_training(folder):
    assert max(launch(WORLD, train_fsdp, (folder,), timeout=120)) < 1e-6


def test_a_plan_lowers_the_peak_under_fully_shard_as_it_does_without(tmp_path):
    trace = with_roofline(capture(deep, "deep"), load_hardware("cpu-2x2"))
    plan = memory_plan(trace, Fraction(6, 10), MemoryOptions(gap=0.1))
    save(plan, trace, tmp_path)
    saved = trace.plain_peak_bytes - plan.prediction.peak_bytes
    for found in launch(WORLD, peaks, (str(tmp_path),), timeout=120):
        assert found["plain"] - found["planned"] >= 0.8 * saved > 0


def test_autocast_works_under_fully_shard(tmp_path):
    with autocast_to("bfloat16", "cpu"):
        trace = with_roofline(capture(STEPS["gpt2"], "gpt2"), load_hardware("cpu-2x2"))
    save(memory_plan(trace, Fraction(1)), trace, tmp_path)
    for losses in launch(WORLD, under_autocast, (str(tmp_path),), timeout=120):
        for planned, plain in losses:
            assert planned == pytest.approx(plain, rel=1e-3)
