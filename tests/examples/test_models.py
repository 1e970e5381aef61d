"""The reference networks have the published sizes, and one training step of each small one works."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402


def entry(name: str) -> Callable[..., Any]:
    module, function = name.split(":")
    return getattr(importlib.import_module(f"examples.models.{module}"), function)


def parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


PUBLISHED = {
    # torchvision's tables of models
    "resnet50:resnet50": 25_557_032,
    "vgg16:vgg16": 138_357_544,
    "googlenet:googlenet": 6_624_904,
    "mobilenet_v2:mobilenet_v2": 3_504_872,
    "resnet152:inference": 60_192_808,
    # timm's table of models
    "inception_v4:inception_v4": 42_679_816,
    "nasnet_a:nasnet_a": 88_753_150,
    # the common padded form with batch normalisation; the sum is spelt out in the module
    "unet:unet": 31_037_698,
    # the released checkpoints
    "gpt2:small": 124_439_808,
    "gpt2:medium": 354_823_168,
    "gpt2:large": 774_030_080,
    "gpt2:xl": 1_557_611_200,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name: str) -> None:
    with torch.device("meta"):
        model, _, _ = entry(name)(batch=1)
    assert parameters(model) == PUBLISHED[name]


def test_googlenet_with_auxiliary_classifiers() -> None:
    with torch.device("meta"):
        model, _, _ = entry("googlenet:googlenet")(batch=1, aux=True)
    assert parameters(model) == 13_004_888


@pytest.mark.parametrize(
    ("name", "exact", "millions"), [("lstm_lm:medium", 19_780_400, 20), ("lstm_lm:large", 66_034_000, 66)]
)
def test_lstm_sizes(name: str, exact: int, millions: int) -> None:
    """The paper gives millions only; the exact number follows from its layer sizes."""
    with torch.device("meta"):
        model, _, _ = entry(name)()
    assert parameters(model) == exact
    assert round(exact / 1e6) == millions


def test_mixtral_experts_complete_the_published_total() -> None:
    """32 layers of experts, grouped-query attention and two norms, two embeddings and a norm: Mixtral 8x7B."""
    with torch.device("meta"):
        model, _, _ = entry("moe:mixtral")()
    attention = 2 * 4096 * 4096 + 2 * 4096 * 1024
    assert 32 * (parameters(model) + attention + 2 * 4096) + 2 * 32_000 * 4096 + 4096 == 46_702_792_704


@pytest.mark.parametrize(("wide", "exact"), [(4, 936_563_944), (10, 5_820_386_920)])
def test_wide_resnet_widens_every_convolution(wide: int, exact: int) -> None:
    """Convolutions grow by the square, but for the first, whose images have 3 channels; norms and the last weight
    linearly."""
    with torch.device("meta"):
        model, _, _ = entry("wide_resnet152:training")(batch=1, wide=wide)
        narrow, _, _ = entry("resnet152:inference")()
    sizes = {True: 0, False: 0}
    for name, parameter in narrow.named_parameters():
        sizes[parameter.dim() == 4 and parameter.shape[1] != 3] += 0 if name == "classifier.bias" else parameter.numel()
    assert parameters(model) == sizes[True] * wide**2 + sizes[False] * wide + 1000 == exact


@pytest.mark.parametrize(
    ("name", "exact"), [("recurrent:rnn_8_8k", 4_045_799_680), ("recurrent:brnn_4_8k", 5_406_851_328)]
)
def test_sizes_of_the_character_models(name: str, exact: int) -> None:
    """SwapAdvisor gives the layers and their width: 8 times width squared a layer, 12 if bidirectional."""
    with torch.device("meta"):
        model, _, _ = entry(name)()
    assert parameters(model) == exact
    square = 8192**2
    layers = 4 * square + 7 * 8 * square if "rnn_8" in name else 2 * (4 * square + 3 * 12 * square)
    assert layers < exact < layers * 1.02


FULL_SIZE = [
    *PUBLISHED,
    "lstm_lm:medium",
    "lstm_lm:large",
    "moe:mixtral",
    "wide_resnet152:training",
    "wide_resnet152:training_4",
    "inception_v4:training",
    "nasnet_a:training",
    "recurrent:rnn_8_8k",
    "recurrent:brnn_4_8k",
]


@pytest.mark.parametrize("name", FULL_SIZE)
def test_built_on_fake_tensors_at_full_size(name: str) -> None:
    with FakeTensorMode() as mode:
        model, inputs, loss = entry(name)()
    tensors = [*model.parameters(), *model.buffers(), *inputs]
    assert all(getattr(tensor, "fake_mode", None) is mode for tensor in tensors)
    assert callable(loss) == (name != "resnet152:inference")


SMALL: dict[str, dict[str, Any]] = {
    "resnet50:tiny": {},
    "vgg16:tiny": {},
    "googlenet:googlenet": {"batch": 2, "image_size": 32, "classes": 10},
    "googlenet:googlenet aux": {"batch": 2, "image_size": 32, "classes": 10, "aux": True},
    "mobilenet_v2:mobilenet_v2": {"batch": 2, "image_size": 32, "classes": 10},
    "unet:tiny": {},
    "gpt2:tiny": {},
    "lstm_lm:tiny": {},
    "moe:tiny": {},
    "wide_resnet152:tiny": {},
    "inception_v4:tiny": {},
    "nasnet_a:tiny": {},
    "recurrent:tiny": {},
    "recurrent:tiny_both": {},
}


@pytest.mark.parametrize("name", SMALL)
def test_training_lowers_the_loss_and_reaches_every_parameter(name: str) -> None:
    torch.manual_seed(0)
    model, inputs, loss = entry(name.split(" ")[0])(**SMALL[name])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        value = loss(model, *inputs)
        assert value.shape == ()
        value.backward()
        for key, parameter in model.named_parameters():
            assert parameter.grad is not None, key
        optimizer.step()
        losses.append(value.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", SMALL)
def test_the_seed_decides_weights_and_inputs(name: str) -> None:
    values = []
    for _ in range(2):
        torch.manual_seed(3)
        model, inputs, loss = entry(name.split(" ")[0])(**SMALL[name])
        values.append(loss(model, *inputs).item())
    assert values[0] == values[1]


def test_gpt2_ties_its_embeddings_and_looks_only_back() -> None:
    torch.manual_seed(0)
    model, (tokens, _), _ = entry("gpt2:tiny")()
    assert model.output.weight is model.token_embedding.weight
    changed = tokens.clone()
    changed[:, 20] = (changed[:, 20] + 1) % 256
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :20], after[:, :20])
    assert not torch.equal(before[:, 20:], after[:, 20:])


def test_unet_output_is_as_large_as_its_input() -> None:
    model, (images, labels), _ = entry("unet:tiny")(height=40, width=56)
    assert model(images).shape == (2, 2, *images.shape[2:])
    assert labels.shape == (2, *images.shape[2:])


def expected_experts(model: Any, tokens: Any, capacity: int) -> Any:
    """The block's definition, one token at a time."""
    x = tokens.flatten(0, 1)
    taken = [0] * model.experts
    output = x.clone()
    for index, token in enumerate(x):
        weights, chosen = model.router(token).softmax(-1).topk(model.k)
        for weight, expert in zip(weights / weights.sum(), chosen.tolist(), strict=True):
            if taken[expert] < capacity:
                hidden = torch.nn.functional.silu(token @ model.gate[expert]) * (token @ model.up[expert])
                output[index] += weight * (hidden @ model.down[expert])
            taken[expert] += 1
    return output.view_as(tokens)


@pytest.mark.parametrize(("capacity_factor", "capacity"), [(4.0, 64), (0.5, 8), (0.0625, 1)])
def test_experts_follow_their_definition_and_drop_tokens_beyond_capacity(capacity_factor: float, capacity: int) -> None:
    torch.manual_seed(1)
    model, (tokens, _), _ = entry("moe:tiny")(capacity_factor=capacity_factor)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(20)
        output, _ = model(tokens)
        torch.testing.assert_close(output, expected_experts(model, tokens, capacity))


def test_balance_loss_is_one_when_experts_share_evenly() -> None:
    """Switch Transformers, equation 4: the minimum, 1, is reached under uniform routing."""
    model, (tokens, _), _ = entry("moe:tiny")()
    with torch.no_grad():
        model.router.weight.zero_()
        assert model(tokens)[1].item() == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["recurrent:tiny", "recurrent:tiny_both"])
def test_cells_are_those_of_an_lstm(name: str) -> None:
    torch.manual_seed(2)
    model, (characters, _), _ = entry(name)()
    sides, width = len(model.layers[0]), model.layers[0][0].of_state.in_features
    whole = torch.nn.LSTM(model.embedding.embedding_dim, width, len(model.layers), bidirectional=sides == 2)
    with torch.no_grad():
        for layer, cells in enumerate(model.layers):
            for cell, side in zip(cells, ("", "_reverse"), strict=False):
                getattr(whole, f"weight_ih_l{layer}{side}").copy_(cell.of_input.weight)
                getattr(whole, f"weight_hh_l{layer}{side}").copy_(cell.of_state.weight)
                getattr(whole, f"bias_ih_l{layer}{side}").copy_(cell.of_input.bias)
                getattr(whole, f"bias_hh_l{layer}{side}").zero_()
        torch.testing.assert_close(model(characters), model.output(whole(model.embedding(characters))[0]))


def test_inference_gives_logits() -> None:
    model, inputs, loss = entry("resnet152:tiny")()
    assert loss is None
    assert model.eval()(*inputs).shape == (2, 10)


def test_the_masked_language_model_is_called_by_keyword() -> None:
    """Training lowers the loss; what is masked changes nothing for the other positions but through the mean."""
    torch.manual_seed(0)
    model, batch = entry("masked_lm:tiny")()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        result = model(**batch, want_hidden=True)
        result.loss.backward()
        optimizer.step()
        losses.append(result["loss"].item())
    assert losses[-1] < losses[0]
    assert (len(result), len(result.hidden), result[1] is result.logits) == (3, 2, True)
    padded = batch["tokens"]["ids"].clone()
    padded[-1, 8:] = 0
    changed = model({**batch["tokens"], "ids": padded}).logits
    torch.testing.assert_close(changed[-1, :8], model(batch["tokens"]).logits[-1, :8])
