"""The networks of Espresso (table 4.4) and Cupcake (section 5.4): their gradients in backward order, by closed form.

`work` is the multiply-adds of the products of a layer, for one sample (a token of the language models); it falls to the
first gradient of the layer that is ready. The work of attention's own products and of embeddings is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Parameter:
    """A parameter, its elements, and the work of its layer's products that its gradient's readiness waits for."""

    name: str
    elements: int
    work: int = 0


Layers = tuple[Parameter, ...]


@dataclass(frozen=True)
class Network:
    """A network with its sizes as the papers state them."""

    name: str
    layers: Callable[[], Layers]
    tensors: int
    mebibytes: int

    @property
    def backward(self) -> Layers:
        """Its parameters in the order in which their gradients become ready."""
        return tuple(reversed(self.layers()))


def product(name: str, weights: int, bias: int, uses: int) -> Layers:
    """A layer whose `weights` are each used `uses` times; its bias, if any, is ready first."""
    if not bias:
        return (Parameter(f"{name}.weight", weights, weights * uses),)
    return (Parameter(f"{name}.weight", weights), Parameter(f"{name}.bias", bias, weights * uses))


def convolution(name: str, inputs: int, outputs: int, kernel: int, size: int, *, bias: bool = False) -> Layers:
    """A convolution whose output is `size` x `size`."""
    return product(name, inputs * outputs * kernel * kernel, outputs if bias else 0, size * size)


def linear(name: str, inputs: int, outputs: int, *, bias: bool = True) -> Layers:
    return product(name, inputs * outputs, outputs if bias else 0, 1)


def norm(name: str, width: int) -> Layers:
    return (Parameter(f"{name}.weight", width), Parameter(f"{name}.bias", width))


def joined(parts: Iterable[Layers]) -> Layers:
    return tuple(parameter for part in parts for parameter in part)


def vgg16() -> Layers:
    """Configuration D on images of 224 x 224."""
    parts: list[Layers] = []
    inputs, size = 3, 224
    for channels, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            parts.append(convolution(f"features.{len(parts)}", inputs, channels, 3, size, bias=True))
            inputs = channels
        size //= 2
    for place, (rows, columns) in enumerate(((inputs * size * size, 4096), (4096, 4096), (4096, 1000))):
        parts.append(linear(f"classifier.{place}", rows, columns))
    return joined(parts)


def resnet(blocks: tuple[int, ...], size: int, classes: int) -> Layers:
    """Bottlenecks on images of `size` x `size`, whose first stage works on a quarter of that."""
    parts = [convolution("stem", 3, 64, 7, size // 2), norm("stem.norm", 64)]
    inputs, size = 64, size // 4
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            name = f"{stage}.{block}"
            before = size
            size = size // 2 if stage and not block else size
            for part, (one, other, kernel, out) in enumerate(
                ((inputs, width, 1, before), (width, width, 3, size), (width, 4 * width, 1, size))
            ):
                parts += [convolution(f"{name}.{part}", one, other, kernel, out), norm(f"{name}.{part}.norm", other)]
            if not block:
                parts += [convolution(f"{name}.down", inputs, 4 * width, 1, size), norm(f"{name}.down.norm", 4 * width)]
            inputs = 4 * width
    return joined([*parts, linear("classifier", inputs, classes)])


def transformer(name: str, width: int) -> Layers:
    """A layer of a transformer with fused queries, keys and values."""
    return joined(
        [
            norm(f"{name}.norm1", width),
            linear(f"{name}.qkv", width, 3 * width),
            linear(f"{name}.output", width, width),
            norm(f"{name}.norm2", width),
            linear(f"{name}.expand", width, 4 * width),
            linear(f"{name}.contract", 4 * width, width),
        ]
    )


def gpt2() -> Layers:
    """GPT-2 small; its output layer shares the token embedding, whose gradient is ready last."""
    width, vocabulary = 768, 50257
    embeddings = (Parameter("tokens.weight", vocabulary * width), Parameter("positions.weight", 1024 * width))
    last = (Parameter("norm.weight", width), Parameter("norm.bias", width, vocabulary * width))
    return joined([embeddings, *(transformer(f"{layer}", width) for layer in range(12)), last])


def bert() -> Layers:
    """BERT-base for pre-training; 207 counts the output layer, which shares the token embedding, once more."""
    width, vocabulary = 768, 30522
    embeddings = (
        Parameter("words.weight", vocabulary * width),
        Parameter("positions.weight", 512 * width),
        Parameter("types.weight", 2 * width),
        *norm("embeddings.norm", width),
    )
    parts = [embeddings]
    for layer in range(12):
        for part in ("query", "key", "value", "output"):
            parts.append(linear(f"{layer}.{part}", width, width))
        parts += [norm(f"{layer}.norm1", width), linear(f"{layer}.expand", width, 4 * width)]
        parts += [linear(f"{layer}.contract", 4 * width, width), norm(f"{layer}.norm2", width)]
    head = (Parameter("head.bias", vocabulary, vocabulary * width), *linear("head.transform", width, width))
    return joined([*parts, linear("pooler", width, width), head, norm("head.norm", width), linear("next", width, 2)])


def lstm() -> Layers:
    """Two layers of 1,500 over the 33,278 words of WikiText-2; the output layer shares the embedding."""
    width, vocabulary = 1500, 33278
    parts: list[Layers] = [(Parameter("encoder.weight", vocabulary * width),)]
    for layer in range(2):
        biases = (Parameter(f"{layer}.bias_ih", 4 * width), Parameter(f"{layer}.bias_hh", 4 * width))
        inside = product(f"{layer}.ih", 4 * width * width, 0, 1), product(f"{layer}.hh", 4 * width * width, 0, 1)
        parts += [biases, *inside]
    return joined([*parts, (Parameter("decoder.bias", vocabulary, vocabulary * width),)])


def generator(name: str) -> Layers:
    """U-GAT-IT's generator, which a step runs six times, on images of 256 x 256, with 4 blocks down and 4 up."""
    parts = [convolution("down.0", 3, 64, 7, 256), convolution("down.1", 64, 128, 3, 128)]
    parts.append(convolution("down.2", 128, 256, 3, 64))
    parts += [convolution(f"block.{place}", 256, 256, 3, 64) for place in range(8)]
    parts += [linear("gap", 256, 1, bias=False), linear("gmp", 256, 1, bias=False)]
    parts.append(convolution("attention", 512, 256, 1, 64, bias=True))
    parts += [linear("fc.0", 64 * 64 * 256, 256, bias=False), linear("fc.1", 256, 256, bias=False)]
    parts += [linear("gamma", 256, 256, bias=False), linear("beta", 256, 256, bias=False)]
    for place in range(8):
        parts += [convolution(f"adaptive.{place}", 256, 256, 3, 64), (Parameter(f"adaptive.{place}.rho", 256),)]
    for place, (width, size) in enumerate(((128, 128), (64, 256))):
        parts.append(convolution(f"up.{place}", 2 * width, width, 3, size))
        parts.append(tuple(Parameter(f"up.{place}.{each}", width) for each in ("rho", "gamma", "beta")))
    parts.append(convolution("up.2", 64, 3, 7, 256))
    return tuple(Parameter(f"{name}.{each.name}", each.elements, 3 * each.work) for each in joined(parts))


def discriminator(name: str, halvings: int) -> Layers:
    """U-GAT-IT's discriminator: `halvings` convolutions that halve an image of 256 x 256, one more, and attention."""
    parts, inputs, width, size = [], 3, 64, 256
    for place in range(halvings):
        size //= 2
        parts.append(convolution(f"{place}", inputs, width, 4, size, bias=True))
        inputs, width = width, 2 * width
    parts.append(convolution(f"{halvings}", inputs, width, 4, size - 1, bias=True))
    parts += [linear("gap", width, 1, bias=False), linear("gmp", width, 1, bias=False)]
    parts += [convolution("attention", 2 * width, width, 1, size - 1, bias=True)]
    parts.append(convolution("out", width, 1, 4, size - 2))
    return tuple(Parameter(f"{name}.{each.name}", each.elements, each.work) for each in joined(parts))


def ugatit() -> Layers:
    """Two generators and, for each direction, a global and a local discriminator, which are ready first."""
    discriminators = [discriminator(f"{kind}{side}", depth) for side in "AB" for kind, depth in (("g", 5), ("l", 3))]
    return joined([generator("A2B"), generator("B2A"), *discriminators])


NETWORKS = {
    network.name: network
    for network in (
        Network("VGG16", vgg16, 32, 528),
        Network("ResNet50", lambda: resnet((3, 4, 6, 3), 32, 10), 161, 90),
        Network("ResNet101", lambda: resnet((3, 4, 23, 3), 224, 1000), 314, 170),
        Network("UGATIT", ugatit, 148, 2559),
        Network("BERT-base", bert, 207, 420),
        Network("GPT2", gpt2, 148, 475),
        Network("LSTM", lstm, 10, 328),
    )
}
