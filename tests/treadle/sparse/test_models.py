"""Models of DistributedDataParallel under a plan for sparse gradients train as plain ones do, on real processes over
gloo. Their parameters and inputs are integers, so that gradients are equal bit by bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

import treadle.sparse
from tests.planner.passes.collective.build import MESH, line
from tests.planner.plans import collective_plan
from tests.treadle.sparse.plans import Given, decisions_of, plan_of
from treadle import comm
from treadle.codegen import targets
from treadle.codegen.emit import write
from treadle.planner.errors import InputError
from treadle.planner.passes.sparse.decisions import SparseDecisions
from treadle.runtime.launch import launch
from treadle.runtime.sparse.ddp import others

WIDTH = 4


class Net(nn.Module):
    """Tables with sparse and dense gradients, one of them tied to the output, next to layers that are always dense: one
    whose weight has columns in memory, one that is left out where asked, and a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Embedding(40, WIDTH, sparse=True)
        self.bag = nn.EmbeddingBag(30, WIDTH, mode="sum", sparse=True)
        self.unplanned = nn.Embedding(20, WIDTH, sparse=True)
        self.dense = nn.Embedding(50, WIDTH)
        self.tied = nn.Embedding(9, WIDTH)
        self.turned = nn.Linear(WIDTH, WIDTH)
        self.turned.weight = nn.Parameter(torch.zeros(WIDTH, WIDTH).t())
        self.left = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, 9)
        self.out.weight = self.tied.weight
        self.frozen = nn.Parameter(torch.ones(WIDTH), requires_grad=False)
        for parameter in self.parameters():
            parameter.data.copy_(torch.randint(-1, 2, parameter.shape))

    def forward(self, words: Tensor, skip: bool = False) -> Tensor:
        """words [B, 3] -> [B, 9]."""
        tables = (self.first, self.unplanned, self.dense, self.tied)
        found = sum(table(words % table.num_embeddings).sum(1) for table in tables) + self.bag(words % 30)
        found = self.turned(found) * self.frozen
        return self.out(found if skip else found + self.left(found))


def decisions(machines: int = 2, devices: int = 1, schemes: tuple[str, ...] = ("zen",) * 4) -> SparseDecisions:
    found = [("bag.weight", "coo", 30), ("tied.weight", "dense", 9), ("dense.weight", "dense", 50),
             ("first.weight", "coo", 40)]  # fmt: skip
    given = [Given(name, form, units, WIDTH, scheme)  # type: ignore[arg-type]
             for (name, form, units), scheme in zip(found, schemes, strict=True)]  # fmt: skip
    return decisions_of(given, machines, devices)


def batch(rank: int, step: int) -> Tensor:
    """Rows of which few are common; those of rank 1 are many in step 3."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(0, 120, (30 if rank == 1 and step == 3 else 3, 3), generator=generator)


def models(**options: Any) -> tuple[DistributedDataParallel, DistributedDataParallel]:
    torch.manual_seed(0)
    net = Net()
    return tuple(DistributedDataParallel(copy.deepcopy(net), **options) for _ in range(2))  # type: ignore[return-value]


def same(one: nn.Module, other: nn.Module) -> None:
    """Equal gradients of the same form, on all ranks."""
    for (name, first), (_, second) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        assert (first.grad is None) == (second.grad is None), name
        if first.grad is not None and second.grad is not None:
            assert first.grad.layout == second.grad.layout, name
            assert torch.equal(first.grad.to_dense(), second.grad.to_dense()), name
            mine = first.grad.to_dense().contiguous()
            every = [torch.empty_like(mine) for _ in range(distributed.get_world_size())]
            distributed.all_gather(every, mine)
            assert all(torch.equal(each, mine) for each in every), name


def compared(rank: int, world: int, given: SparseDecisions, **options: Any) -> None:
    """Steps of both models: plain ones, one with many more rows, one that leaves a layer out on one rank where that is
    allowed, accumulation."""
    plain, planned = models(bucket_cap_mb=0.0002, **options)
    handle = treadle.sparse.attach(planned, plan_of(given))
    for step in range(5):
        skip = bool(options.get("find_unused_parameters")) and step in (1, 4) and (step == 4 or rank == 0)
        for model in (plain, planned):
            if step == 2 and not options.get("static_graph"):
                with model.no_sync():
                    model(batch(rank, 10)).sum().backward()
            model(batch(rank, step), skip).sum().backward()
        same(planned, plain)
        for model in (plain, planned):
            model.zero_grad(set_to_none=step != 0)
    found = handle.statistics()
    assert found.iterations == 5
    assert found.sent_bytes > 0
    hashed = {plan.name for plan in given.gradients if plan.memory is not None}
    assert {growth.gradient for growth in found.growths} <= hashed
    assert bool(found.retries) == bool(hashed)
    handle.close()
    for model in (plain, planned):
        model(batch(rank, 0)).sum().backward()
    same(planned, plain)
    assert list(planned.state_dict()) == list(plain.state_dict())


def optimized(rank: int, world: int) -> None:
    """Optimizers are those of the script, unchanged."""
    kinds: tuple[Callable[[Any], list[torch.optim.Optimizer]], ...] = (
        lambda net: [torch.optim.SGD(net.parameters(), 0.1)],
        lambda net: [torch.optim.Adagrad(net.parameters(), 0.1)],
        lambda net: [
            torch.optim.SparseAdam([net.first.weight, net.bag.weight, net.unplanned.weight], 0.1),
            torch.optim.Adam([net.dense.weight, net.tied.weight, *net.turned.parameters(), *net.left.parameters()]),
        ],
    )
    for kind in kinds:
        pair = models()
        handle = treadle.sparse.attach(pair[1], plan_of(decisions()))
        for model in pair:
            optimizers = kind(model.module)
            for step in range(3):
                model.zero_grad()
                model(batch(rank, step)).sigmoid().mean().backward()
                for optimizer in optimizers:
                    optimizer.step()
        for mine, theirs in zip(*(model.parameters() for model in pair), strict=True):
            torch.testing.assert_close(mine, theirs)
        handle.close()


def planned_dense_parts(rank: int, world: int, folder: str) -> None:
    """What the plan does not name is averaged by the planned allreduce, as are all dense buckets of a model."""
    plain, planned = models()
    handle = treadle.sparse.attach(planned, plan_of(decisions()), collectives=folder)
    for model in (plain, planned):
        model(batch(rank, 0)).sum().backward()
    same(planned, plain)
    assert comm.summary().planned["all_reduce"] > 0
    assert not comm.summary().fell_back
    handle.close()
    comm.shutdown()


def refused(rank: int, world: int) -> None:
    """What does not fit a model is refused by name, on all ranks alike."""
    given = decisions()
    for change, text in (
        (lambda net: setattr(net, "dense", None), "found no parameter 'dense.weight'"),
        (lambda net: net.bag.weight.requires_grad_(False), "found no parameter 'bag.weight' that takes a gradient"),
        (
            lambda net: setattr(net, "first", nn.Embedding(40, 3, sparse=True)),
            r"found 'first.weight' of shape \[40, 3\], expected 40 rows of 4",
        ),
        (lambda net: net.dense.to(torch.float64), "found float64 gradients of 'dense.weight'"),
        (lambda net: setattr(net.bag, "sparse", False), "found dense gradients of 'bag.weight', expected coo ones"),
    ):
        net = Net()
        change(net)
        with pytest.raises(InputError, match=text):
            treadle.sparse.attach(DistributedDataParallel(net), plan_of(given))
    with pytest.raises(InputError, match="found 2 ranks, expected 4: the plan is for 2 nodes of 2 ranks"):
        treadle.sparse.attach(DistributedDataParallel(Net()), plan_of(decisions(2, 2)))
    other = plan_of(decisions(schemes=("zen", "zen", "zen", ("zen", "dense")[rank])))
    with pytest.raises(InputError, match="rank 1 found another plan than rank 0"):
        treadle.sparse.attach(DistributedDataParallel(Net()), other)
    with pytest.raises(InputError, match="found a Net, expected a DistributedDataParallel model"):
        treadle.sparse.attach(Net(), plan_of(given))
    with pytest.raises(InputError, match=r"rank 1: .*none\.json: cannot read"):
        treadle.sparse.attach(DistributedDataParallel(Net()), plan_of(given) if rank == 0 else "none.json")
    elements = plan_of(decisions_of([Given("bag.weight", "coo", 30 * WIDTH, 1, "zen", "element")]))
    with pytest.raises(InputError, match=r"found elements of the COO gradient of 'bag.weight' in the plan"):
        treadle.sparse.attach(DistributedDataParallel(Net()), elements)
    hooked = DistributedDataParallel(Net())
    hooked.register_comm_hook(None, lambda state, bucket: None)
    with pytest.raises(InputError, match="found a communication hook"):
        treadle.sparse.attach(hooked, plan_of(given))
    model = DistributedDataParallel(Net())
    handle = treadle.sparse.attach(model, plan_of(given))
    with pytest.raises(InputError, match="found an exchange, expected a model without one"):
        treadle.sparse.attach(model, plan_of(given))
    handle.close()
    with pytest.raises(InputError, match=r"found a closed exchange, whose hook stays .*; wrap its module anew"):
        treadle.sparse.attach(model, plan_of(given))
    treadle.sparse.attach(DistributedDataParallel(model.module), plan_of(given)).close()


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"gradient_as_bucket_view": True},
    {"find_unused_parameters": True},
    {"static_graph": True},
)
SCHEMES = (
    ("zen", "zen", "zen", "zen"),
    ("agsparse", "dense", "omnireduce", "sparcml"),
    ("dense", "ranges", "balanced", "sparse-ps"),
)


def two(rank: int, world: int, folder: str) -> None:
    for options in OPTIONS:
        compared(rank, world, decisions(), **options)
    for schemes in SCHEMES:
        compared(rank, world, decisions(schemes=schemes))
    optimized(rank, world)
    planned_dense_parts(rank, world, folder)
    refused(rank, world)


@pytest.mark.slow
def test_models_train_as_plain_ones_do(tmp_path: Path) -> None:
    plan = collective_plan("allreduce", line(2), MESH, size_bytes=4 * 2**12, instances=1)
    write(targets.generate(plan, "plan.json"), tmp_path)
    launch(2, two, (str(tmp_path),), timeout=120)


@pytest.mark.parametrize(
    ("planned", "between"),
    [((), [(0, 12)]), ((0,), [(3, 12)]), ((2, 1), [(0, 3), (9, 12)]), ((0, 3), [(3, 9)]), ((0, 1, 2, 3), [])],
    ids=str,
)
def test_what_lies_between_planned_gradients_is_averaged(
    planned: tuple[int, ...], between: list[tuple[int, int]]
) -> None:
    """A bucket of four gradients of three elements, itself a part of a larger one."""
    buffer = torch.arange(20.0)[5:17]
    found = [(int(part[0]) - 5, int(part[-1]) - 4) for part in others(buffer, [buffer.split(3)[at] for at in planned])]
    assert found == between


def four(rank: int, world: int) -> None:
    compared(rank, world, decisions(2, 2))
    compared(rank, world, decisions(4, 1, ("zen", "ranges", "zen", "dense")))


@pytest.mark.slow
def test_models_train_as_plain_ones_do_on_two_nodes_of_two_ranks() -> None:
    launch(4, four, timeout=120)
