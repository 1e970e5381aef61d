"""What each process does while compressors are measured: it encodes, decodes and copies gradients of many sizes.

Gradients are normally distributed, and encodings take their residual along, as in training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count, cycle
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from treadle.planner.documents.compression_costs import Place
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.errors import CheckFailed
from treadle.planner.machine.compressors import compressor
from treadle.probe.call_timer import PASSES, CallTimer
from treadle.probe.measured_codecs import CodecMaker, MeasuredCodec

PIECES = (1, 4, 16)
"""Numbers of payloads that are decoded together."""
CACHE_BYTES, MOST_COPIES = 64 << 20, 16
MOST_ELEMENTS = 1 << 25
"""Elements of all payloads that are decoded together, to spare memory."""
GUARD_BYTES = 64
FILLS = (0x00, 0xFF)


class Series(NamedTuple):
    """What is timed over sizes: the copy of gradients has no name."""

    work: Literal["encode", "decode", "pack"]
    name: str = ""
    place: Place = "device"
    pieces: int = 1


Times = dict[Series, dict[int, float]]
"""Ns by series and elements, of the fastest pass."""


class _Copied(NamedTuple):
    """Memory where a compressor works for a tensor of the device, and the copies to it and back."""

    tensor: Tensor
    fetch: Callable[[], object]
    give: Callable[[], object]


def measured_compressors(
    names: tuple[str, ...],
    sizes: tuple[int, ...],
    packed: int,
    timer: CallTimer,
    maker: CodecMaker,
    on_step: Callable[[str], None],
) -> Times:
    """Times of each compressor at each place, and of the copy of `packed` gradients into one buffer, over `sizes` in
    elements.

    Raises CheckFailed for a payload of another size than plans count with, and what the compressors raise.
    """
    found: Times = {}
    steps = PASSES * compression_steps(names, sizes, timer.device.type)
    for number, (place, name, elements) in enumerate(steps):
        on_step(f"{number}/{len(steps)} steps: {name or 'copies'} on the {place}, {format_bytes(4 * elements)}")
        values = torch.randn(elements, generator=torch.Generator().manual_seed(elements)).to(timer.device)
        if name:
            _compressor(name, place, values, timer, maker, found)
        else:
            _add(
                found,
                Series("pack"),
                elements,
                timer.ns(_in_turns([_packing(each, packed) for each in _copies(values)])),
            )
    return found


def compression_steps(names: tuple[str, ...], sizes: tuple[int, ...], device: str) -> list[tuple[Place, str, int]]:
    """Place, compressor and elements of each step; without a name the copy of gradients. A CPU as the device is the
    host as well and is measured once."""
    places: tuple[Place, ...] = ("device",) if device == "cpu" else ("device", "host")
    steps = [(place, name, elements) for place in places for name in names for elements in sizes]
    return [*steps, *(("device", "", elements) for elements in sizes)]


def _compressor(name: str, place: Place, values: Tensor, timer: CallTimer, maker: CodecMaker, found: Times) -> None:
    elements = values.numel()
    device = torch.device("cpu") if place == "host" else values.device
    make = partial(maker, name, elements, device=device.type)
    require_wire(f"{name} on the {place}", make, values.to(device), compressor(name).wire_bytes(elements))
    copied = _uncopied if device == values.device else _pinned
    gradients = _copies(values)
    codecs = [make() for _ in gradients]
    encodings = [_encoding(*each, copied) for each in zip(codecs, gradients, strict=True)]
    _add(found, Series("encode", name, place), elements, timer.ns(_in_turns([encode for encode, _ in encodings])))
    payload = encodings[0][1]
    for pieces in PIECES if compressor(name).algorithm.messages == 1 else (1,):
        if pieces == 1 or pieces * elements <= MOST_ELEMENTS:
            decodings = [_decoding(codecs[0], payload.repeat(pieces), each, copied) for each in gradients]
            _add(found, Series("decode", name, place, pieces), elements, timer.ns(_in_turns(decodings)))


def _copies(values: Tensor) -> list[Tensor]:
    """As many as do not fit into a cache together, as in training, where what a compressor reads and writes was last
    used an iteration before; not too many of small ones."""
    return [values.clone() for _ in range(min(MOST_COPIES, 1 + CACHE_BYTES // values.nbytes))]


def _in_turns(calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
    turns = cycle(calls)
    return lambda: next(turns)()


def _add(found: Times, series: Series, elements: int, ns: float) -> None:
    by_size = found.setdefault(series, {})
    by_size[elements] = min(ns, by_size.get(elements, ns))


def require_wire(what: str, make: Callable[[], MeasuredCodec], values: Tensor, expected: int) -> None:
    """Raises CheckFailed where an encoding writes other bytes than the `expected` ones, all of them."""
    written, untouched = written_bytes(make, values)
    if written != expected:
        raise CheckFailed(f"{what}: {values.numel()} elements have a payload of {written} bytes, expected {expected}")
    if untouched:
        raise CheckFailed(f"{what}: {values.numel()} elements leave {untouched} bytes of {expected} as they were")


def written_bytes(make: Callable[[], MeasuredCodec], values: Tensor) -> tuple[int, int]:
    """How many bytes an encoding writes, from the first to the last one, and how many of them it leaves as they were.

    Memory around a payload has one content and then another: bytes that differ between the two were not written.
    """
    buffers = []
    for fill in FILLS:
        codec = make()
        buffer = torch.full((codec.wire_bytes + GUARD_BYTES,), fill, dtype=torch.uint8, device=values.device)
        codec.encode(values, buffer[: codec.wire_bytes], None, 0)
        buffers.append(buffer)
    written = (buffers[0] == buffers[1]).nonzero()
    last = 0 if not len(written) else 1 + int(written[-1])
    return last, last - len(written)


def _uncopied(tensor: Tensor) -> _Copied:
    return _Copied(tensor, lambda: None, lambda: None)


def _pinned(tensor: Tensor) -> _Copied:
    there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return _Copied(there, lambda: there.copy_(tensor), lambda: tensor.copy_(there))


def _encoding(
    codec: MeasuredCodec, values: Tensor, copied: Callable[[Tensor], _Copied]
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
    codec: MeasuredCodec, payloads: Tensor, values: Tensor, copied: Callable[[Tensor], _Copied]
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


def _packing(values: Tensor, packed: int) -> Callable[[], object]:
    """A call that copies `packed` gradients into one buffer."""
    gradients = [part.clone() for part in values.chunk(packed)]
    buffer = torch.empty_like(values)

    def pack() -> None:
        torch.cat(gradients, out=buffer)

    return pack
