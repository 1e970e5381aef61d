"""Payloads are those of plain references, nothing is lost that the residual does not keep, threads change no bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.treadle.kernels.compression import references
from treadle.kernels.compression import codec, library
from treadle.kernels.compression.codec import IDENTITY, Codec, NativeCodec
from treadle.kernels.compression.library import ALGORITHMS
from treadle.planner.errors import InputError, MissingBackendError
from treadle.planner.machine.compressors import compressor
from treadle.runtime import native_build

NAMES = [*ALGORITHMS, "randomk:1", "topk:1", "topk:0.3", "dgc:0.6", "randomk:0.4"]
KINDS = ("normal", "ties", "zeros", "tiny", "one large")


def gradient(size: int, kind: str, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if kind == "ties":
        return torch.randint(-2, 3, (size,), generator=generator).float()
    v = torch.randn(size, generator=generator) * {"zeros": 0.0, "tiny": 1e-39}.get(kind, 1.0)
    if kind == "one large" and size:
        v[size // 2] = -3e38
    return v


def sent(made: Codec, values: Tensor, residual: Tensor | None = None, seed: int = 0) -> Tensor:
    payload = torch.full((made.wire_bytes,), 0xAB, dtype=torch.uint8)
    made.encode(values, payload, residual, seed)
    return payload


def received(made: Codec, payloads: Tensor, seed: int = 0) -> Tensor:
    out = torch.zeros(made.elements)
    made.decode_add(payloads, out, seed)
    return out


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25)
@given(size=st.integers(1, 1200), kind=st.sampled_from(KINDS), seed=st.integers(0, 2**64 - 1))
def test_payloads_and_what_they_decode_to(name: str, size: int, kind: str, seed: int) -> None:
    made, values = codec(name, size, threads=1), gradient(size, kind, seed % 2**63)
    before = gradient(size, "ties", 1)
    residual = before.clone()
    payload = sent(made, values, residual, seed)
    v, found = (values + before).numpy(), compressor(name)
    with np.errstate(over="ignore"):
        assert payload.numpy().tobytes() == references.encoded(found, v, seed)
    back = references.decoded(found, payload.numpy().tobytes(), size, seed)
    assert np.array_equal(received(made, payload, seed).numpy(), back)
    left = v - back
    assert np.array_equal(residual.numpy(), np.where(np.isfinite(left), left, 0))
    assert torch.equal(sent(made, values + 0, None, seed), sent(made, values, torch.zeros(size), seed))


@pytest.mark.parametrize("name", NAMES)
def test_sizes_of_chunks_samples_and_threads(name: str) -> None:
    """Sizes at which work is cut, with one thread and with several; the largest has a thread for each part."""
    found = compressor(name)
    for size in (4095, 4097, 16385, 3 * 65536 + 7):
        values, results = gradient(size, "normal", size), []
        for threads in (1, 3):
            made, residual = codec(name, size, threads=threads), gradient(size, "ties", 2)
            payload = sent(made, values, residual, 9)
            results.append((payload, residual, received(made, payload.repeat(3), 9)))
        assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
        if size < 20_000:
            v = (values + gradient(size, "ties", 2)).numpy()
            assert results[0][0].numpy().tobytes() == references.encoded(found, v, 9)


@pytest.mark.parametrize("name", [*ALGORITHMS, IDENTITY])
def test_every_size_has_the_bytes_of_the_plan(name: str) -> None:
    for size in range(301):
        made = codec(name, size)
        assert made.wire_bytes == (4 * size if name == IDENTITY else compressor(name).wire_bytes(size))
        values = gradient(size, "normal", size)
        residual = torch.zeros(size)
        guarded = torch.full((made.wire_bytes + 8,), 0xAB, dtype=torch.uint8)
        made.encode(values, guarded[: made.wire_bytes], residual, size)
        assert (guarded[made.wire_bytes :] == 0xAB).all()
        back = received(made, guarded[: made.wire_bytes], size)
        assert torch.allclose(back + residual, values, atol=1e-6)


@pytest.mark.parametrize("name", [*ALGORITHMS, IDENTITY])
def test_pieces_are_added_one_after_the_other(name: str) -> None:
    made, start = codec(name, 5000, threads=2), gradient(5000, "normal", 1)
    pieces = [sent(made, gradient(5000, "normal", seed), None, 7) for seed in range(4)]
    together, single = start.clone(), start.clone()
    made.decode_add(torch.cat(pieces), together, 7)
    for piece in pieces:
        made.decode_add(piece, single, 7)
    assert torch.equal(together, single)
    made.decode_add(pieces[0][:0], together, 7)
    assert torch.equal(together, single)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_finite_passes_on_and_is_not_kept(name: str) -> None:
    for bad in (float("nan"), float("inf"), -float("inf")):
        for share in (1, 40):
            values, residual = gradient(3000, "normal", 5), torch.zeros(3000)
            values[:share] = bad
            made = codec(name, 3000, threads=2)
            payload = sent(made, values, residual, 3)
            assert residual.isfinite().all()
            back = received(made, payload, 3)
            if not name.startswith("randomk:0") and name != "randomk":
                assert not back[:share].isfinite().all()
            made.encode(torch.ones(3000), payload, residual, 4)
            assert received(made, payload, 4).isfinite().all()


def test_damaged_indices_write_nowhere_else() -> None:
    made = codec("topk:0.1", 1000)
    payload = torch.full((made.wire_bytes,), 255, dtype=torch.uint8)
    guarded = torch.zeros(1400)
    made.decode_add(payload, guarded[200:1200])
    assert not guarded[:200].any()
    assert not guarded[1200:].any()


def test_rounding_at_random_is_right_on_average() -> None:
    made, values = codec("qsgd", 512), torch.linspace(-1, 1, 512)
    mean = sum(received(made, sent(made, values, None, seed)) for seed in range(400)) / 400
    assert (mean - values).abs().max() < 5 * 0.5 / 127 / 20  # five standard deviations


def test_random_elements_are_distinct_and_all_come() -> None:
    made, seen = codec("randomk:0.1", 95), torch.zeros(95)
    for seed in range(200):
        here = received(made, sent(made, torch.ones(95), None, seed), seed)
        assert here.sum() == 9
        seen += here
    assert seen.min() > 0


def test_clear_forgets_what_was_sent() -> None:
    values = gradient(3000, "normal", 2)
    for name in ("topk", "randomk:0.2", "dgc:0.5"):
        made = codec(name, 3000, threads=2)
        assert isinstance(made, NativeCodec)
        left, residual = values.clone(), torch.zeros(3000)
        made.clear(sent(made, values, residual, 3), left, 3)
        assert torch.equal(left, residual)
    with pytest.raises(InputError, match="found int8, expected a compressor with a ratio"):
        codec("int8", 3000).clear(torch.empty(0), values)  # type: ignore[attr-defined]


def test_what_is_refused() -> None:
    made = codec("int8", 8)
    values, payload = torch.zeros(8), torch.zeros(made.wire_bytes, dtype=torch.uint8)
    for tensors, words in (
        ((values[1:], payload), "found values of 7 torch.float32, expected 8"),
        ((values.double(), payload), "found values of 8 torch.float64"),
        ((torch.zeros(16)[::2], payload), "not contiguous, expected"),
        ((values, payload[1:]), "found payload of 11 torch.uint8, expected 12"),
        ((values, payload, values[1:]), "found residual of 7"),
        ((values, torch.zeros(13, dtype=torch.uint8)[1:]), "odd address"),
    ):
        with pytest.raises(InputError, match=words):
            made.encode(*tensors)
    with pytest.raises(InputError, match="found payloads of 11 torch"):
        made.decode_add(payload[1:], values)
    for name, elements, words in (
        ("powersgd:4", 8, "expected a compressor of one exchange"),
        ("zip", 8, "found 'zip', expected one of randomk"),
        ("int8", -1, "found -1 elements"),
        ("int8", 2**31, "expected 0 to 2147483647"),
    ):
        with pytest.raises(InputError, match=words):
            codec(name, elements)
    with pytest.raises(InputError, match="expected cpu or cuda"):
        codec("int8", 8, device="meta")


def test_without_a_compiler_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_build.shutil, "which", lambda name: None)
    library.library_of.cache_clear()
    with pytest.raises(MissingBackendError, match=r"found no g\+\+"):
        codec("int8", 8)
    library.library_of.cache_clear()
