"""A model and its optimizer whose steps a server makes: weights, states, settings, hooks and refusals, in front of a
reference of the server."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn, optim
from torch.nn.parallel import DistributedDataParallel

import treadle.server
from tests.treadle.server.reference import ReferenceWorker, layout_of
from treadle.planner.errors import InputError
from treadle.planner.passes.server.problem import OptimizerName
from treadle.server import models

Maker = Callable[[Any], optim.Optimizer]
MAKERS: dict[str, tuple[OptimizerName, Maker]] = {
    "plain": ("sgd", lambda given: optim.SGD(given, 0.1)),
    "sgd": ("sgd", lambda given: optim.SGD(given, 0.1, momentum=0.9, dampening=0.1, weight_decay=0.01)),
    "nesterov": ("nesterov", lambda given: optim.SGD(given, 0.1, momentum=0.9, nesterov=True)),
    "adam": ("adam", lambda given: optim.Adam(given, 0.01, (0.8, 0.95), weight_decay=0.1, maximize=True)),
    "adamw": ("adam", lambda given: optim.AdamW(given, 0.01)),
    "lamb": ("lamb", lambda given: treadle.server.Lamb(given, 0.01, weight_decay=0.1)),
}


class Net(nn.Module):
    """Two layers, a frozen one, and one that only some batches use."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 5), nn.Linear(5, 2)
        self.rare, self.frozen = nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)

    def forward(self, given: Tensor, rare: bool = False) -> Tensor:
        found = self.second(self.first(given).relu())
        return self.frozen(self.rare(found) if rare else found)


@pytest.fixture
def attach(monkeypatch: pytest.MonkeyPatch) -> Callable[..., treadle.server.ServedTraining]:
    """`treadle.server.attach` with the reference in place of a server."""

    def attached(model: nn.Module, optimizer: optim.Optimizer, **options: Any) -> treadle.server.ServedTraining:
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        name = options.pop("name", None) or models.name_of(optimizer)
        made = options.pop("worker", None) or ReferenceWorker(layout_of(inner, name))
        monkeypatch.setattr(models, "Worker", lambda address, worker: made)
        return treadle.server.attach(model, optimizer, "job.json", worker=0, **options)

    return attached


def net(kind: str = "sgd") -> tuple[Net, optim.Optimizer]:
    torch.manual_seed(0)
    model = Net()
    return model, MAKERS[kind][1](model.parameters())


def train(model: nn.Module, optimizer: optim.Optimizer, steps: range, **given: Any) -> None:
    for step in steps:
        optimizer.zero_grad()
        batch = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
        model(batch, rare=step % 3 == 2, **given).square().sum().backward()
        optimizer.step()


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


@pytest.mark.parametrize("kind", MAKERS)
def test_steps_and_states_are_those_of_the_local_optimizer(kind: str, attach: Any) -> None:
    model, optimizer = net(kind)
    local, own = net(kind)
    training = attach(model, optimizer)
    for each, other in ((model, optimizer), (local, own)):
        train(each, other, range(5))
    assert equal(model.state_dict(), local.state_dict())
    assert equal(optimizer.state_dict(), own.state_dict())
    assert not optimizer.state
    assert training.step == 5


def test_weights_lie_in_the_buffers_until_the_training_is_closed(attach: Any) -> None:
    model, optimizer = net()
    before = model.first.weight.data_ptr()
    training = attach(model, optimizer)
    assert model.first.weight.data_ptr() == training.parameters[0].value.data_ptr() != before
    train(model, optimizer, range(2))
    training.close()
    training.close()
    assert model.first.weight.data_ptr() != training.parameters[0].value.data_ptr()
    local, own = net()
    train(local, own, range(2))
    assert equal(optimizer.state_dict(), own.state_dict())
    for each, other in ((model, optimizer), (local, own)):
        train(each, other, range(2, 4))
    assert equal(model.state_dict(), local.state_dict())
    assert "step" not in optimizer.__dict__
    assert training.worker.closed


def test_parameters_with_other_strides_are_copied(attach: Any) -> None:
    model, optimizer = net()
    local, own = net()
    for each in (model, local):
        each.first.weight.data = each.first.weight.data.t().contiguous().t()
    attach(model, optimizer)
    for each, other in ((model, optimizer), (local, own)):
        train(each, other, range(3))
    assert model.first.weight.stride() == (1, 5)
    assert equal(model.state_dict(), local.state_dict())


def test_a_saved_file_is_of_pytorch_alone(attach: Any) -> None:
    model, optimizer = net("adam")
    attach(model, optimizer)
    train(model, optimizer, range(3))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    local, own = net("adam")
    local.load_state_dict(saved["model"])
    own.load_state_dict(saved["optimizer"])
    for each, other in ((model, optimizer), (local, own)):
        train(each, other, range(3, 5))
    assert equal(model.state_dict(), local.state_dict())
    assert equal(optimizer.state_dict(), own.state_dict())


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0,), (1,)], ids=["both", "optimizer-first", "weights", "states"])
def test_what_is_loaded_goes_to_the_server(order: tuple[int, ...], attach: Any) -> None:
    other, its = net("adam")
    train(other, its, range(4))
    saved = copy.deepcopy(other.state_dict()), copy.deepcopy(its.state_dict())
    model, optimizer = net("adam")
    local, own = net("adam")
    attach(model, optimizer)
    for pair in ((model, optimizer), (local, own)):
        train(*pair, range(2))
        for each in order:
            pair[each].load_state_dict(saved[each])  # type: ignore[arg-type]
        train(*pair, range(2, 4))
    assert equal(model.state_dict(), local.state_dict())
    assert equal(optimizer.state_dict(), own.state_dict())


def test_an_optimizer_with_states_goes_on_from_them(attach: Any) -> None:
    model, optimizer = net("sgd")
    local, own = net("sgd")
    for pair in ((model, optimizer), (local, own)):
        train(*pair, range(2))
    attach(model, optimizer)
    for pair in ((model, optimizer), (local, own)):
        train(*pair, range(2, 4))
    assert equal(model.state_dict(), local.state_dict())


@pytest.mark.parametrize("early", [True, False], ids=["made-before", "made-after"])
def test_schedulers_and_hooks_of_a_step_work(early: bool, attach: Any, recwarn: pytest.WarningsRecorder) -> None:
    model, optimizer = net()
    local, own = net()
    steps: list[str] = []
    found = {}
    for each, other in ((model, optimizer), (local, own)):
        scheduler = optim.lr_scheduler.ExponentialLR(other, 0.5) if early or other is own else None
        if other is optimizer:
            found["training"] = attach(model, optimizer)
            scheduler = scheduler or optim.lr_scheduler.ExponentialLR(other, 0.5)
            other.register_step_post_hook(lambda *_: steps.append("after"))
        for step in range(3):
            train(each, other, range(step, step + 1))
            scheduler.step()
    assert equal(model.state_dict(), local.state_dict())
    assert len(steps) == 3
    assert len(found["training"].worker.sent) == 3
    found["training"].close()
    for each, other in ((model, optimizer), (local, own)):
        train(each, other, range(3, 4))
    assert equal(model.state_dict(), local.state_dict())
    assert not [each for each in recwarn if "lr_scheduler" in str(each.message)]


def test_groups_have_settings_of_their_own_and_closures_run(attach: Any) -> None:
    def grouped(model: Net) -> optim.Optimizer:
        groups = [{"params": model.first.parameters(), "lr": 0.5}, {"params": [*model.second.parameters()]}]
        return optim.SGD([*groups, {"params": model.rare.parameters()}], 0.1, momentum=0.5)

    torch.manual_seed(0)
    model, local = Net(), Net()
    local.load_state_dict(model.state_dict())
    optimizer, own = grouped(model), grouped(local)
    attach(model, optimizer)
    losses = []
    for each, other in ((model, optimizer), (local, own)):

        def closure(each: Net = each, other: optim.Optimizer = other) -> Tensor:
            other.zero_grad()
            loss = each(torch.ones(1, 3)).sum()
            loss.backward()
            return loss

        losses.append([other.step(closure).item() for _ in range(3)])
    assert losses[0] == losses[1]
    assert equal(model.state_dict(), local.state_dict())


def test_gradients_are_accumulated_over_batches(attach: Any) -> None:
    model, optimizer = net()
    local, own = net()
    attach(model, optimizer)
    for each, other in ((model, optimizer), (local, own)):
        for batch in range(4):
            each(torch.full((1, 3), float(batch))).sum().backward()
        other.step()
    assert equal(model.state_dict(), local.state_dict())


def test_gradients_of_other_workers_are_added_in_order(attach: Any) -> None:
    model, optimizer = net()
    weights = [each.detach().clone() for each in model.parameters() if each.requires_grad]
    others = [[torch.full_like(each, 1e8 * sign) for each in weights] for sign in (1, -1)]
    attach(model, optimizer, worker=ReferenceWorker(layout_of(model, "sgd", 3), others))
    model(torch.ones(1, 3)).sum().backward()
    gradient = model.first.bias.grad
    assert gradient is not None
    optimizer.step()
    mean = ((gradient + 1e8) - 1e8) / 3
    assert torch.equal(model.first.bias, weights[1] - 0.1 * (mean + 0.01 * weights[1]))


def test_autograd_refuses_weights_that_have_changed(attach: Any) -> None:
    model, optimizer = net()
    attach(model, optimizer)
    loss = model(torch.ones(1, 3)).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


class Odd(optim.SGD):
    """A subclass may do anything in its step."""


REFUSED: dict[str, tuple[Maker, dict[str, Any], str]] = {
    "class": (lambda given: optim.Adagrad(given), {"name": "adam"}, "found the optimizer torch.optim.adagrad.Adagrad"),
    "subclass": (lambda given: Odd(given, 0.1), {"name": "sgd"}, "Odd, expected torch.optim.SGD"),
    "amsgrad": (lambda given: optim.Adam(given, amsgrad=True), {"name": "adam"}, "a server keeps no maxima"),
    "other": (MAKERS["adam"][1], {"name": "sgd"}, "found the optimizer adam, the servers have sgd; plan for adam"),
    "mixed": (
        lambda given: optim.SGD([{"params": [next(given)]}, {"params": [*given], "nesterov": True}], 0.1, momentum=0.9),
        {"name": "sgd"},
        "groups of SGD with nesterov and without",
    ),
    "unnamed": (lambda given: optim.SGD([*given][:-1], 0.1), {}, "found no parameter 'rare.bias' that is trained"),
    "foreign": (lambda given: optim.SGD([*given, nn.Parameter(torch.ones(1))], 0.1), {}, "that the model lacks"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_server_does_not_compute_is_refused_in_one_line(case: str, attach: Any) -> None:
    make, options, expected = REFUSED[case]
    model = Net()
    for each in model.frozen.parameters():
        each.requires_grad_(False)
    optimizer = make(each for each in model.parameters() if each.requires_grad)
    with pytest.raises(InputError, match=expected) as found:
        attach(model, optimizer, **options)
    assert "\n" not in str(found.value)
    assert "step" not in optimizer.__dict__


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda model: model.double(), "found float64 in 'first.weight', expected float32 as in the plan"),
        (lambda model: setattr(model, "first", nn.Linear(3, 6)), r"of shape \[6, 3\], expected 15 elements"),
        (lambda model: setattr(model, "extra", nn.Linear(1, 1)), "a parameter 'extra.weight' that the plan lacks"),
    ],
    ids=["type", "shape", "more"],
)
def test_parameters_other_than_the_plans_are_named(change: Any, expected: str, attach: Any) -> None:
    planned, model = Net(), Net()
    change(model)
    with pytest.raises(InputError, match=expected):
        attach(model, optim.SGD(model.parameters(), 0.1), worker=ReferenceWorker(layout_of(planned, "sgd")))


def test_servers_that_have_begun_need_rejoin(attach: Any) -> None:
    model, optimizer = net("adam")
    worker = ReferenceWorker(layout_of(model, "adam"))
    attach(model, optimizer, worker=worker)
    train(model, optimizer, range(3))
    late, its = net("adam")
    with torch.no_grad():
        late.first.weight.zero_()
    again = ReferenceWorker(layout_of(model, "adam", step=3, loads=1))
    again.weights, again.states = worker.weights, worker.states
    with pytest.raises(InputError, match="found weights of step 3 on the servers; attach with rejoin=True"):
        attach(late, its, worker=again)
    training = attach(late, its, worker=again, rejoin=True)
    assert training.step == 3
    assert equal(late.state_dict(), model.state_dict())
    local, own = net("adam")
    train(local, own, range(3))
    for each, other in ((late, its), (local, own)):
        train(each, other, range(3, 5))
    assert equal(late.state_dict(), local.state_dict())


def test_changes_of_groups_and_sparse_gradients_are_refused(attach: Any) -> None:
    model = nn.Sequential(nn.Embedding(4, 2, sparse=True))
    optimizer = optim.SGD(model.parameters(), 0.1)
    attach(model, optimizer)
    model(torch.tensor([1])).sum().backward()
    with pytest.raises(InputError, match=r"found a sparse gradient of '0\.weight', expected dense ones"):
        optimizer.step()
    other, its = net()
    attach(other, its)
    its.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    with pytest.raises(InputError, match="found other parameters in the optimizer"):
        train(other, its, range(1))


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize("views", [False, True], ids=["copied", "views"])
def test_buckets_are_pushed_while_the_backward_pass_goes_on(views: bool, attach: Any, group: None) -> None:
    model, optimizer = net("adam")
    local, own = net("adam")
    wrapped = DistributedDataParallel(
        model, find_unused_parameters=True, bucket_cap_mb=1e-5, gradient_as_bucket_view=views
    )
    training = attach(wrapped, optimizer)
    train(wrapped, optimizer, range(2))
    train(local, own, range(2))
    pushed_by = []
    model.first.weight.register_hook(lambda _: pushed_by.append(len(training.pushed)))
    for each, other in ((wrapped, optimizer), (local, own)):
        train(each, other, range(2, 6))
    assert min(pushed_by) > 0
    assert equal(model.state_dict(), local.state_dict())
    assert equal(optimizer.state_dict(), own.state_dict())
    training.close()
    for each, other in ((wrapped, optimizer), (local, own)):
        train(each, other, range(6, 8))
    assert equal(model.state_dict(), local.state_dict())


def test_what_comes_too_late_for_a_backward_pass_is_refused(attach: Any, group: None) -> None:
    model, optimizer = net()
    model.rare.requires_grad_(False)
    wrapped = DistributedDataParallel(model)
    attach(wrapped, optimizer)
    wrapped(torch.ones(1, 3)).sum().backward()
    optimizer.param_groups[0]["lr"] = 1.0
    with pytest.raises(InputError, match="settings of the optimizer that changed after gradients were sent"):
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.1
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    with pytest.raises(InputError, match="found gradients that changed after they were sent"):
        optimizer.step()
    with pytest.raises(InputError, match=r"a second backward pass .* under model\.no_sync"):
        wrapped(torch.ones(1, 3)).sum().backward()


def test_batches_without_an_exchange_are_accumulated(attach: Any, group: None) -> None:
    model, optimizer = net()
    local, own = net()
    for each in (model, local):
        each.rare.requires_grad_(False)
    wrapped = DistributedDataParallel(model)
    attach(wrapped, optimizer)
    with wrapped.no_sync():
        wrapped(torch.ones(1, 3)).sum().backward()
    wrapped(torch.zeros(1, 3)).sum().backward()
    optimizer.step()
    for value in (1.0, 0.0):
        local(torch.full((1, 3), value)).sum().backward()
    own.step()
    assert equal(model.state_dict(), local.state_dict())
