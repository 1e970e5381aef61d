"""What a recording sees are the gradients of each backward pass, on every rank before they are exchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

import treadle.sparse
from treadle.planner.documents import store
from treadle.planner.documents.sparsity import Sparsity
from treadle.planner.errors import InputError
from treadle.probe.index_sets import RecordedTensor, load_archive
from treadle.runtime.launch import launch

ROWS, USERS = 40, 50


class Recommender(nn.Module):
    """Bags of users with COO gradients, items with dense ones of which rows are zero, and dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.EmbeddingBag(USERS, 4, mode="sum", sparse=True)
        self.items = nn.Embedding(ROWS, 3)
        self.top = nn.Linear(7, 2)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        found: Tensor = self.top(torch.cat([self.users(users), self.items(items)], 1)).square().sum()
        return found


class Language(nn.Module):
    """An embedding that the output layer shares, or not."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, 3, sparse=not tied)
        self.output = nn.Linear(3, ROWS, bias=False)
        if tied:
            self.output.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.output(self.embedding(words[:-1])), words[1:])


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(100 * rank + step)
    return torch.randint(USERS, (6, 5), generator=drawn), torch.randint(ROWS, (6,), generator=drawn)


def tensors(recording: treadle.sparse.SparsityRecording, path: Path) -> dict[str, RecordedTensor]:
    recording.save_sets(path)
    return {each.name: each for each in load_archive(path).tensors}


def test_coo_and_dense_gradients_are_those_of_the_batches(tmp_path: Path) -> None:
    model = Recommender()
    recording = treadle.sparse.record(model, steps=3)
    for step in range(5):
        assert recording.is_complete == (step >= 3)
        model(*batch(0, step)).backward()
    found = tensors(recording, tmp_path / "sets.npz")
    assert {name: (each.form, each.unit, each.units, each.width) for name, each in found.items()} == {
        "users.weight": ("coo", "row", USERS, 4),
        "items.weight": ("dense", "row", ROWS, 3),
    }
    for step in range(3):
        users, items = batch(0, step)
        assert sorted(found["users.weight"].sets[step][0]) == sorted(users.flatten().tolist())
        assert found["items.weight"].sets[step][0].tolist() == sorted(set(items.tolist()))
    assert set(recording.left_out) == {"top.weight", "top.bias"}
    assert not any(parameter._backward_hooks for parameter in model.parameters())
    recording.save(tmp_path / "sparsity.json")
    assert store.load(tmp_path / "sparsity.json", Sparsity) == recording.document()


def test_elements_of_rows_are_those_that_are_not_zero(tmp_path: Path) -> None:
    model = nn.Embedding(5, 2, sparse=True)
    recording = treadle.sparse.record(model, steps=1, unit="element")
    (model(torch.tensor([3, 1, 3])) * torch.tensor([0.0, 2.0])).sum().backward()
    (tensor,) = tensors(recording, tmp_path / "sets.npz").values()
    assert (tensor.unit, tensor.units, tensor.width) == ("element", 10, 1)
    assert sorted(tensor.sets[0][0].tolist()) == [3, 7, 7]


@pytest.mark.parametrize("tied", [False, True], ids=["own output layer", "tied output layer"])
def test_an_embedding_of_a_language_model(tied: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, words = Language(tied), torch.tensor([3, 9, 3, 3, 7])
    recording = treadle.sparse.record(model, steps=1)
    model(words).backward()
    if tied:  # the softmax makes all rows dense
        assert set(recording.left_out) == {"embedding.weight"}
        with pytest.raises(InputError, match="found no sparse gradient to record"):
            recording.document()
        return
    (tensor,) = tensors(recording, tmp_path / "sets.npz").values()
    assert (tensor.name, tensor.sets[0][0].tolist()) == ("embedding.weight", [3, 9, 3, 3])
    assert set(recording.left_out) == {"output.weight"}


def test_a_step_without_a_parameter_has_an_empty_set(tmp_path: Path) -> None:
    model = nn.ModuleList([nn.Embedding(9, 2, sparse=True), nn.Embedding(9, 2, sparse=True)])
    recording = treadle.sparse.record(model, steps=3)
    for used in (0, 1, 0):
        model[used](torch.tensor([used + 4])).sum().backward()
    found = tensors(recording, tmp_path / "sets.npz")
    assert [each[0].tolist() for each in found["0.weight"].sets] == [[4], [], [4]]
    assert [each[0].tolist() for each in found["1.weight"].sets] == [[], [5], []]


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor) -> Tensor:
        return given.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        raise RuntimeError("broken")


def test_a_backward_pass_that_failed_does_not_count(tmp_path: Path) -> None:
    model = nn.Embedding(9, 2, sparse=True)
    recording = treadle.sparse.record(model, steps=2)
    for row in (1, 2, 3):
        found = model(torch.tensor([row])).sum()
        if row == 2:
            with pytest.raises(RuntimeError, match="broken"):
                (Broken.apply(torch.ones(1, requires_grad=True)).sum() + found).backward()
        else:
            found.backward()
    assert recording.is_complete
    (tensor,) = tensors(recording, tmp_path / "sets.npz").values()
    assert [each[0].tolist() for each in tensor.sets] == [[1], [3]]


def test_gradients_that_plans_do_not_exchange_are_left_out() -> None:
    model = nn.ModuleList([nn.Embedding(9, 2, sparse=True, dtype=torch.bfloat16), nn.Embedding(9, 2, sparse=True)])
    recording = treadle.sparse.record(model, steps=1)
    sum(each(torch.tensor([4])).sum() for each in model).backward()  # type: ignore[union-attr]
    assert recording.left_out == {"0.weight": "its gradients are bfloat16, not float32"}


def test_gradients_that_are_zero_only_at_first_are_left_out() -> None:
    model = nn.ModuleList([nn.Linear(3, 3, bias=False), nn.Embedding(9, 2, sparse=True)])
    recording = treadle.sparse.record(model, steps=4)
    for step in range(4):
        ((model[0](torch.ones(3)) * min(step, 1)).sum() + model[1](torch.tensor([1])).sum()).backward()
    document = recording.document()
    assert document is not None
    assert [each.name for each in document.tensors] == ["1.weight"]
    assert set(recording.left_out) == {"0.weight"}


def test_a_recording_may_end_early_and_needs_a_step() -> None:
    model = nn.Embedding(9, 2, sparse=True)
    recording = treadle.sparse.record(model)
    with pytest.raises(InputError, match="found no backward pass to record"):
        treadle.sparse.record(model).document()
    model(torch.tensor([1])).sum().backward()
    document = recording.document()
    assert document is not None
    assert (document.steps, document.tensors[0].sets) == (1, 1)
    model(torch.tensor([1])).sum().backward()
    assert recording.recorded_steps == 1


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (nn.Linear(1, 1), {"steps": 0}, "found 0 steps, expected at least 1"),
        (nn.Linear(1, 1), {"unit": "column"}, "found the unit 'column', expected 'row' or 'element'"),
        (nn.ReLU(), {}, "found no parameter that is trained"),
    ],
    ids=["no steps", "another unit", "no parameters"],
)
def test_what_cannot_be_recorded_is_refused(model: nn.Module, options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        treadle.sparse.record(model, **options)


def recorded(rank: int, world: int, folder: str) -> bool:
    """Train on batches of this rank's own; the recorded sets of all ranks are those of their batches."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Recommender())
    recording = treadle.sparse.record(model, steps=2)
    for step in range(3):
        model(*batch(rank, step)).backward()
    document = recording.document()
    recording.save_sets(f"{folder}/sets.npz")
    distributed.barrier()
    found = {each.name: each for each in load_archive(f"{folder}/sets.npz").tensors}
    for step in range(2):
        for source in range(world):
            users, items = batch(source, step)
            assert sorted(found["users.weight"].sets[step][source]) == sorted(users.flatten().tolist())
            assert np.array_equal(found["items.weight"].sets[step][source], np.unique(items))
    if document is not None:
        assert (document.ranks, document.steps) == (world, 2)
        assert [each.participants for each in document.tensors[0].unions] == [1, 2, 4]
    return document is not None


@pytest.mark.slow
def test_ranks_record_their_own_gradients_and_the_first_has_all(tmp_path: Path) -> None:
    assert launch(2, recorded, (str(tmp_path),), timeout=120) == [True, False]
