"""Models of DistributedDataParallel under a plan train as plain ones do, on real processes over gloo."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

import treadle
from tests.treadle.runtime.compression.coders import IdentityCoders
from tests.treadle.runtime.compression.plans import decisions_of, plan_of
from treadle.compress import CompressedExchange
from treadle.planner.errors import InputError
from treadle.planner.passes.compression.decisions import CompressionDecisions
from treadle.runtime.compression.attached import attach_ddp
from treadle.runtime.launch import launch

ALLREDUCE = ("allreduce@flat",)
ALLGATHER = ("compress@device", "allgather@flat", "decompress@host")
ALLTOALL = ("compress@host", "alltoall@flat", "decompress@device", "compress@device", "allgather@flat",
            "decompress@device")  # fmt: skip
ALLGATHER_BETWEEN = ("decompress@device", "compress@host", "allgather@inter")
HIERARCHICAL = ("reduce-scatter@intra", "compress@device", "alltoall@inter", "decompress@host", "allgather@inter",
                "allgather@intra")  # fmt: skip


class Net(nn.Module):
    """Layers of which the third one is used where asked, one with columns in memory as convolutions with channels last
    have them, and a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(7, 7) for _ in range(4))
        self.layers[1].weight = nn.Parameter(torch.randn(7, 7).t())
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
            mine = first.grad.contiguous()
            every = [torch.empty_like(mine) for _ in range(distributed.get_world_size())]
            distributed.all_gather(every, mine)
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


def early(rank: int, world: int) -> None:
    """A group is compressed as soon as its gradients are ready, though one bucket holds those of all groups."""
    model, _ = models(bucket_cap_mb=25)
    handle = attach_ddp(model, decisions(1, 2), IdentityCoders())
    done: list[set[tuple[int, int]]] = []
    model.module.layers[0].weight.register_post_accumulate_grad_hook(
        lambda _: done.append({(each.group, each.step) for each in handle.exchange.times})
    )
    for step in range(2):
        model(batch(rank, step)).sum().backward()
    assert len(done) == 2
    assert all((1, 0) in each for each in done)
    handle.close()


def resumed(rank: int, world: int) -> None:
    """The continuation of a saved run is that of the run itself; under another plan residuals start at zero, with a
    line that says so."""
    plan = plan_of(decisions(1, 2, "dgc:0.3"))
    saved: dict[str, Any] = {}
    found = []
    for start in (0, 3):
        model, _ = models()
        handle = treadle.compress.attach(model, plan, momentum=0.5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if start:
            model.load_state_dict(saved["model"])
            handle.load_state_dict(saved["exchange"])
        for step in range(start, 6):
            if step == 3 and not start:
                saved = copy.deepcopy({"model": model.state_dict(), "exchange": handle.state_dict()})
            model(batch(rank, step)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert max(handle.statistics().residual_norms.values()) > 0
        found.append([parameter.clone() for parameter in model.parameters()])
        handle.close()
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    saved["exchange"]["own"]["kept"]["other", 1, "0.0"] = {"residual": torch.ones(3)}
    changed = treadle.compress.attach(models()[0], plan_of(decisions(1, 2, "onebit")))
    lines: list[str] = []
    with capture(lines):
        changed.load_state_dict(saved["exchange"])
    assert lines == ["the plan differs from that of the state: residuals of 1 group dropped, of 0 groups start at 0"]
    with pytest.raises(InputError, match="found a state of version 9, expected 1"):
        changed.load_state_dict({"version": 9})
    changed.close()


@contextmanager
def capture(lines: list[str]) -> Iterator[None]:
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("treadle.compress")
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


def sharded(rank: int, world: int) -> None:
    """Units of fully_shard with payloads and without; plans that are not for its reduce-scatter are refused."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    mesh = init_device_mesh("cpu", (world,))
    gradients = [("2.bias", 5), ("2.weight", 35), ("0.bias", 7), ("0.weight", 49)]

    def attached(*options: tuple[str, ...]) -> tuple[nn.Module, nn.Module, CompressedExchange]:
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 5))
        model = copy.deepcopy(plain)
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
        groups = [(2 * at, 2 * at + 1, "identity" if "compress@device" in each else None, each)
                  for at, each in enumerate(options)]  # fmt: skip
        return plain, model, treadle.compress.attach(model, plan_of(decisions_of(gradients, groups, 1, world)))

    option = ("compress@device", "alltoall@flat", "decompress@device", "compress@device", "allgather@flat",
              "decompress@device")  # fmt: skip
    plain, model, handle = attached(option, ALLREDUCE)
    assert isinstance(model, FSDPModule)
    for iteration in range(3):
        for each in (plain, model):
            each.zero_grad()
            each(batch(rank, iteration)).square().sum().backward()
        for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            assert theirs.grad is not None
            distributed.all_reduce(theirs.grad)
            torch.testing.assert_close(mine.grad.full_tensor(), theirs.grad / world)  # type: ignore[union-attr,operator]
        if iteration == 1:
            assert handle.statistics().iterations == 2
            assert handle.statistics().sent_bytes == 4 * (3 * 7 + 3)  # shards of 3 rows, to one other rank
            handle.close()
    with pytest.raises(InputError, match=r"for the unit '0', expected a compress with an alltoall.*issue 64665"):
        attached(ALLREDUCE, ("compress@device", "allgather@flat", "decompress@device"))


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
    with pytest.raises(InputError, match="rank 1 found another plan than rank 0"):
        attach_ddp(DistributedDataParallel(Net()), decisions(1, 2, ("one", "two")[rank]), IdentityCoders())
    hooked = DistributedDataParallel(Net())
    hooked.register_comm_hook(None, lambda state, bucket: None)
    with pytest.raises(InputError, match="found a communication hook"):
        attach_ddp(hooked, given, IdentityCoders())
    model = DistributedDataParallel(Net())
    handle = attach_ddp(model, given, IdentityCoders())
    with pytest.raises(InputError, match="found an exchange, expected a model without one"):
        attach_ddp(model, given, IdentityCoders())
    handle.close()
    with pytest.raises(InputError, match=r"found a closed exchange, whose hook stays .*; wrap its module anew"):
        attach_ddp(model, given, IdentityCoders())
    attach_ddp(DistributedDataParallel(model.module), given, IdentityCoders()).close()


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"gradient_as_bucket_view": True},
    {"find_unused_parameters": True},
    {"static_graph": True},
)


def two(rank: int, world: int) -> None:
    for options in OPTIONS:
        compared(rank, world, decisions(1, 2), **options)
    early(rank, world)
    resumed(rank, world)
    sharded(rank, world)
    refused(rank, world)


def four(rank: int, world: int) -> None:
    compared(rank, world, decisions(2, 2))


@pytest.mark.parametrize(("world", "work"), [(2, two), pytest.param(4, four, marks=pytest.mark.slow)])
def test_models_train_as_plain_ones_do(world: int, work: Callable[[int, int], None]) -> None:
    launch(world, work, timeout=120)
