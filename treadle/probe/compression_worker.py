"""What each process does while compressors are measured: it encodes, decodes and copies gradients of many sizes.

Gradients are normally distributed, and encodings take their residual along, as in training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from treadle.planner.documents.compression_costs import Place
from treadle.planner.documents.scalars import format_bytes
from treadle.probe.repeats import PASSES, Repeats

PIECES = (1, 4, 16)
"""Numbers of payloads that are decoded together."""
MOST_ELEMENTS = 1 << 25
"""Elements of all payloads that are decoded together, to spare memory."""
PACKED = 8
"""Gradients that are copied into one buffer."""
GUARD_BYTES = 64
FILLS = (0x00, 0xFF)


class PayloadCodec(Protocol):
    """A compressor for vectors of one length, as `treadle.kernels.compression.codec` makes them."""

    wire_bytes: int

    def encode(self, values: Tensor, payload: Tensor, residual: Tensor | None, seed: int) -> None: ...

    def decode_add(self, payloads: Tensor, out: Tensor, seed: int) -> None: ...


class CodecMaker(Protocol):
    """`treadle.kernels.compression.codec`."""

    def __call__(self, name: str, elements: int, *, device: str) -> PayloadCodec: ...


class Series(NamedTuple):
    """What is timed over sizes: the copy of gradients has no name."""

    work: Literal["encode", "decode", "pack"]
    name: str = ""
    place: Place = "device"
    pieces: int = 1


class WireBytes(NamedTuple):
    """Bytes that an encoding wrote, in one stretch; `untouched` ones inside were left as they were."""

    name: str
    place: Place
    elements: int
    bytes: int
    untouched: int


@dataclass
class CompressionTimes:
    """Ns by series and elements, the least of several, and bytes of payloads."""

    times: dict[Series, dict[int, float]] = field(default_factory=dict)
    wires: list[WireBytes] = field(default_factory=list)

    def add(self, series: Series, elements: int, ns: float) -> None:
        by_size = self.times.setdefault(series, {})
        by_size[elements] = min(ns, by_size.get(elements, ns))


class _Copied(NamedTuple):
    """Memory where a compressor works for a tensor of the device, and the copies to it and back."""

    tensor: Tensor
    fetch: Callable[[], object]
    give: Callable[[], object]


def measured_compressors(
    names: tuple[str, ...],
    sizes: tuple[int, ...],
    repeats: Repeats,
    maker: CodecMaker,
    on_step: Callable[[str], None],
) -> CompressionTimes:
    """Times of each compressor at each place, and of the copy of gradients into one buffer, over `sizes` in elements.

    Raises what the compressors raise.
    """
    found = CompressionTimes()
    steps = PASSES * compression_steps(names, sizes, repeats.device.type)
    for number, (place, name, elements) in enumerate(steps):
        on_step(f"{number}/{len(steps)} steps: {name or 'copies'} on the {place}, {format_bytes(4 * elements)}")
        values = torch.randn(elements, generator=torch.Generator().manual_seed(elements)).to(repeats.device)
        if name:
            _compressor(name, place, values, repeats, maker, found)
        else:
            found.add(Series("pack"), elements, repeats.median_ns(_packing(values)))
    return found


def compression_steps(names: tuple[str, ...], sizes: tuple[int, ...], device: str) -> list[tuple[Place, str, int]]:
    """Place, compressor and elements of each step; without a name the copy of gradients. A CPU as the device is the
    host as well and is measured once."""
    places: tuple[Place, ...] = ("device",) if device == "cpu" else ("device", "host")
    steps = [(place, name, elements) for place in places for name in names for elements in sizes]
    return [*steps, *(("device", "", elements) for elements in sizes)]


def _compressor(
    name: str, place: Place, values: Tensor, repeats: Repeats, maker: CodecMaker, found: CompressionTimes
) -> None:
    elements = values.numel()
    device = torch.device("cpu") if place == "host" else values.device
    codec = maker(name, elements, device=device.type)
    found.wires.append(WireBytes(name, place, elements, *written_bytes(codec, values.to(device))))
    copied = _uncopied if device == values.device else _pinned
    encode, payload = _encoding(codec, values, copied)
    found.add(Series("encode", name, place), elements, repeats.median_ns(encode))
    for pieces in PIECES:
        if pieces == 1 or pieces * elements <= MOST_ELEMENTS:
            decode = _decoding(codec, payload.repeat(pieces), values, copied)
            found.add(Series("decode", name, place, pieces), elements, repeats.median_ns(decode))


def written_bytes(codec: PayloadCodec, values: Tensor) -> tuple[int, int]:
    """How many bytes an encoding writes, from the first to the last one, and how many of them it leaves as they were.

    Memory around a payload has one content and then another: bytes that differ between the two were not written.
    """
    buffers = [
        torch.full((codec.wire_bytes + GUARD_BYTES,), fill, dtype=torch.uint8, device=values.device) for fill in FILLS
    ]
    for buffer in buffers:
        codec.encode(values, buffer[: codec.wire_bytes], None, 0)
    written = (buffers[0] == buffers[1]).nonzero()
    last = 0 if not len(written) else 1 + int(written[-1])
    return last, last - len(written)


def _uncopied(tensor: Tensor) -> _Copied:
    return _Copied(tensor, lambda: None, lambda: None)


def _pinned(tensor: Tensor) -> _Copied:
    there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return _Copied(there, lambda: there.copy_(tensor), lambda: tensor.copy_(there))


def _encoding(
    codec: PayloadCodec, values: Tensor, copied: Callable[[Tensor], _Copied]
) -> tuple[Callable[[], object], Tensor]:
    """A call that encodes with a residual, and the payload that it leaves where gradients are."""
    payload = torch.empty(codec.wire_bytes, dtype=torch.uint8, device=values.device)
    source, target = copied(values), copied(payload)
    residual = torch.zeros_like(source.tensor)
    seeds = count()

    def encode() -> None:
        source.fetch()
        codec.encode(source.tensor, target.tensor, residual, next(seeds))
        target.give()

    return encode, payload


def _decoding(
    codec: PayloadCodec, payloads: Tensor, values: Tensor, copied: Callable[[Tensor], _Copied]
) -> Callable[[], object]:
    """A call that adds up what the payloads hold, from zero."""
    source, out = copied(payloads), copied(torch.empty_like(values))
    seeds = count()

    def decode() -> None:
        source.fetch()
        out.tensor.zero_()
        codec.decode_add(source.tensor, out.tensor, next(seeds))
        out.give()

    return decode


def _packing(values: Tensor) -> Callable[[], object]:
    """A call that copies PACKED gradients into one buffer."""
    gradients = [part.clone() for part in values.chunk(PACKED)]
    places = list(torch.empty_like(values).chunk(PACKED))

    def pack() -> None:
        for place, gradient in zip(places, gradients, strict=True):
            place.copy_(gradient)

    return pack
