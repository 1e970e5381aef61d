"""The models with large embeddings: sizes, sparse gradients that equal the dense ones, and data by Zipf's law."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from examples.models import dlrm, embedding_lm  # noqa: E402
from examples.models.zipf import EXPONENT, zipf  # noqa: E402
from treadle.capture.graph import capture  # noqa: E402
from treadle.planner.errors import InputError  # noqa: E402

MODELS = {"dlrm": dlrm, "embedding_lm": embedding_lm}


def elements(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_sizes() -> None:
    """26 tables of width 16, and 27 vectors of which all pairs are multiplied; two tables of 793,471 words."""
    with torch.device("meta"):
        recommender, words = dlrm.criteo(batch=1)[0], embedding_lm.billion_words(batch=1)[0]
    top = 16 + 27 * 26 // 2
    bottom_layers = 13 * 512 + 512 + 512 * 256 + 256 + 256 * 64 + 64 + 64 * 16 + 16
    top_layers = top * 512 + 512 + 512 * 256 + 256 + 256 + 1
    assert len(dlrm.CRITEO) == 26
    assert elements(recommender) == 16 * sum(dlrm.CRITEO) + bottom_layers + top_layers == 540_677_217
    lstm = 4 * 2048 * (512 + 2048 + 2)
    assert elements(words) == 2 * 793_471 * 512 + lstm + 2048 * 512 + 512 == 834_551_296


@pytest.mark.parametrize("model", MODELS)
def test_training_lowers_the_loss_and_sparse_gradients_are_the_dense_ones(model: str) -> None:
    losses: dict[bool, list[float]] = {}
    gradients: dict[bool, dict[str, Any]] = {}
    for sparse in (True, False):
        torch.manual_seed(0)
        built, inputs, loss = MODELS[model].tiny(sparse=sparse)
        optimizer = torch.optim.SGD(built.parameters(), 0.5)
        losses[sparse] = []
        for _ in range(4):
            optimizer.zero_grad()
            value = loss(built, *inputs)
            value.backward()
            optimizer.step()
            losses[sparse].append(value.item())
        gradients[sparse] = {name: parameter.grad for name, parameter in built.named_parameters()}
    assert losses[True][-1] < losses[True][0]
    tables = [name for name, gradient in gradients[True].items() if gradient.is_sparse]
    assert len(tables) == {"dlrm": 3, "embedding_lm": 2}[model]
    for name, gradient in gradients[False].items():
        torch.testing.assert_close(gradients[True][name].to_dense(), gradient)


@pytest.mark.parametrize("model", MODELS)
def test_with_dense_gradients_it_can_be_captured(model: str) -> None:
    module = MODELS[model]
    trace = capture(module.tiny_dense, model)
    parameters = {tensor.id: tensor.name for tensor in trace.tensors if tensor.role == "parameter"}
    gradients = {parameters[tensor.gradient_of] for tensor in trace.tensors if tensor.gradient_of}
    assert gradients == {name for name, _ in module.tiny()[0].named_parameters()}
    with pytest.raises(InputError, match="sparse_coo"):
        capture(module.tiny, model)


def test_frequent_words_come_first() -> None:
    torch.manual_seed(0)
    seen = torch.bincount(zipf(1000, 200, 1000).flatten(), minlength=1000).double()
    expected = torch.arange(1, 1001).double() ** -EXPONENT
    torch.testing.assert_close(seen[:20] / seen.sum(), expected[:20] / expected.sum(), rtol=0.05, atol=0)
    assert seen.min() > 0
