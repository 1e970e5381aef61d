"""Models of DistributedDataParallel under a plan train as plain ones do, on real processes over gloo."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.treadle.runtime.compression.coders import IdentityCoders
from tests.treadle.runtime.compression.plans import decisions_of
from treadle.planner.errors import InputError
from treadle.planner.passes.compression.decisions import CompressionDecisions
from treadle.runtime.compression.attached import attach_ddp
from treadle.runtime.launch import launch

ALLREDUCE = ("allreduce@flat",)
ALLGATHER = ("compress@device", "allgather@flat", "decompress@host")
ALLTOALL = ("compress@host", "alltoall@flat", "decompress@device", "compress@device", "allgather@flat",
            "decompress@device")  # fmt: skip
HIERARCHICAL = ("reduce-scatter@intra", "compress@device", "alltoall@inter", "decompress@host", "allgather@inter",
                "allgather@intra")  # fmt: skip


class Net(nn.Module):
    """Layers of which the third one is used where asked, and a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(7, 7) for _ in range(4))
        self.frozen = nn.Parameter(torch.ones(7), requires_grad=False)

    def forward(self, values: Tensor, skip: bool = False) -> Tensor:
        for number, layer in enumerate(self.layers):
            if not (skip and number == 2):
                values = torch.tanh(layer(values)) * self.frozen
        return values


def decisions(machines: int, devices: int, compressor: str = "identity") -> CompressionDecisions:
    """Groups that no bucket of a small size has, as gradients become ready."""
    names = [f"layers.{number}.{kind}" for number in (3, 2, 1, 0) for kind in ("bias", "weight")]
    last = ALLREDUCE if machines == 1 else HIERARCHICAL
    return decisions_of(
        [(name, 7 if "bias" in name else 49) for name in names],
        [
            (0, 0, None, ("planned@flat",)),
            (1, 3, compressor, ALLGATHER),
            (4, 4, compressor, ALLTOALL),
            (5, 7, compressor if machines > 1 else None, last),
        ],
        machines,
        devices,
    )


def batch(rank: int, step: int) -> Tensor:
    return torch.randn(5, 7, generator=torch.Generator().manual_seed(100 * step + rank))


def models(seed: int = 0, **options: Any) -> tuple[DistributedDataParallel, DistributedDataParallel]:
    torch.manual_seed(seed)
    net = Net()
    return tuple(DistributedDataParallel(copy.deepcopy(net), **options) for _ in range(2))  # type: ignore[return-value]


def same(one: nn.Module, other: nn.Module) -> None:
    for (name, first), (_, second) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        assert (first.grad is None) == (second.grad is None), name
        if first.grad is not None and second.grad is not None:
            torch.testing.assert_close(first.grad, second.grad, msg=name)
            every = [torch.empty_like(first.grad) for _ in range(distributed.get_world_size())]
            distributed.all_gather(every, first.grad.contiguous())
            assert all(torch.equal(each, first.grad) for each in every), name


def compared(rank: int, world: int, given: CompressionDecisions, **options: Any) -> None:
    """Steps of both models: plain ones, one that leaves a layer out on one rank where that is allowed, accumulation."""
    plain, planned = models(bucket_cap_mb=0.0002, **options)
    handle = attach_ddp(planned, given, IdentityCoders())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (plain, planned)]
    for step in range(5):
        skip = bool(options.get("find_unused_parameters")) and step in (1, 3) and (step == 3 or rank == 0)
        for model in (plain, planned):
            if step == 2 and not options.get("static_graph"):
                with model.no_sync():
                    kept = model(batch(rank, 10))
                kept.sum().backward()  # outside: the forward pass decides
            model(batch(rank, step), skip).square().sum().backward()
        same(planned, plain)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    found = handle.statistics()
    assert found.iterations == 5
    assert len(found.times) == sum(len(group.steps) for group in given.groups)
    handle.close()
    for model in (plain, planned):
        model(batch(rank, 0)).sum().backward()
    same(planned, plain)


def resumed(rank: int, world: int, given: CompressionDecisions) -> None:
    """The continuation of a saved run is that of the run itself."""
    saved: dict[str, Any] = {}
    found = []
    for start in (0, 3):
        model, _ = models()
        coders = IdentityCoders()
        handle = attach_ddp(model, given, coders)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if start:
            model.load_state_dict(saved["model"])
            handle.load_state_dict(saved["exchange"])
        for step in range(start, 6):
            if step == 3 and not start:
                saved = {"model": copy.deepcopy(model.state_dict()), "exchange": handle.state_dict()}
            model(batch(rank, step)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert handle.statistics().residual_norms
        found.append([parameter.clone() for parameter in model.parameters()])
        handle.close()
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def refused(rank: int, world: int) -> None:
    """What does not fit a model is refused by name, on all ranks alike."""
    given = decisions(1, 2)
    for change, text in (
        (lambda net: setattr(net, "extra", nn.Linear(2, 2)), "found parameter 'extra.weight'"),
        (lambda net: setattr(net.layers[0], "bias", None), "found no parameter 'layers.0.bias'"),
        (
            lambda net: setattr(net.layers[1], "bias", nn.Parameter(torch.ones(3))),
            "found 3 elements of 'layers.1.bias'",
        ),
        (lambda net: net.layers[3].to(torch.float64), "found float64 gradients of 'layers.3.weight'"),
    ):
        net = Net()
        change(net)
        with pytest.raises(InputError, match=text):
            attach_ddp(DistributedDataParallel(net), given, IdentityCoders())
    with pytest.raises(InputError, match="found 2 ranks, expected 4: the plan is for 2 nodes of 2 ranks"):
        attach_ddp(DistributedDataParallel(Net()), decisions(2, 2), IdentityCoders())
    hooked = DistributedDataParallel(Net())
    hooked.register_comm_hook(None, lambda state, bucket: None)
    with pytest.raises(InputError, match="found a communication hook"):
        attach_ddp(hooked, given, IdentityCoders())


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"gradient_as_bucket_view": True},
    {"find_unused_parameters": True},
    {"static_graph": True},
)


def two(rank: int, world: int) -> None:
    for options in OPTIONS:
        compared(rank, world, decisions(1, 2), **options)
    resumed(rank, world, decisions(1, 2, "halves"))
    refused(rank, world)


def four(rank: int, world: int) -> None:
    compared(rank, world, decisions(2, 2))


@pytest.mark.parametrize(("world", "work"), [(2, two), (4, four)])
def test_models_train_as_plain_ones_do(world: int, work: Callable[[int, int], None]) -> None:
    launch(world, work, timeout=120)
