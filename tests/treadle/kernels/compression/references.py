"""Every compressor in plain numpy, one element after the other where that is clearest: what a payload has to be."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from treadle.planner.machine.compressors import QSGD_BUCKET, Compressor, low_bits

Floats = NDArray[np.float32]
CHUNK, LANES, SAMPLES = 4096, 256, 16384
WORD = 2**64


def encoded(found: Compressor, v: Floats, seed: int) -> bytes:
    """The payload of `v`, one element at least."""
    name, k = found.algorithm.name, found.kept(len(v))
    if name == "randomk":
        return v[[random_index(seed, len(v), k, j) for j in range(k)]].tobytes()
    if name in ("topk", "dgc"):
        indices = largest(v, k) if name == "topk" else above_threshold(v, k, seed)
        return v[indices].tobytes() + elias_fano(indices, len(v))
    if name in ("efsignsgd", "onebit"):
        return signs(v) + means(name, v).tobytes()
    if name in ("qsgd", "int8"):
        q, scales = quantised(v, seed if name == "qsgd" else None)
        return padded(q.tobytes()) + scales.tobytes()
    if name == "fp16":
        return padded(v.astype(np.float16).tobytes())
    words = v.view(np.uint32).astype(np.uint64)
    return padded(((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint16).tobytes())


def decoded(found: Compressor, payload: bytes, n: int, seed: int) -> Floats:
    """The n numbers that a payload stands for."""
    name, k = found.algorithm.name, found.kept(n)
    out = np.zeros(n, np.float32)
    if name == "randomk":
        out[[random_index(seed, n, k, j) for j in range(k)]] = np.frombuffer(payload, np.float32)
    elif name in ("topk", "dgc"):
        out[indices_of(payload[4 * k :], n, k)] = np.frombuffer(payload[: 4 * k], np.float32)
    elif name in ("efsignsgd", "onebit"):
        words = -(-n // 32) * 4
        negative = np.unpackbits(np.frombuffer(payload[:words], np.uint8), bitorder="little")[:n].astype(bool)
        scales = np.frombuffer(payload[words:], np.float32)
        out = np.where(negative, scales[1] if name == "onebit" else -scales[0], scales[0])
    elif name in ("qsgd", "int8"):
        scales = np.frombuffer(payload[-(-n // 4) * 4 :], np.float32)
        out = np.frombuffer(payload[:n], np.int8).astype(np.float32) * np.repeat(scales, QSGD_BUCKET)[:n]
    elif name == "fp16":
        out = np.frombuffer(payload[: 2 * n], np.float16).astype(np.float32)
    else:
        out = (np.frombuffer(payload[: 2 * n], np.uint16).astype(np.uint32) << 16).view(np.float32)
    return out


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def mixed(seed: int, index: int) -> int:
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) % WORD
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB % WORD
    return z ^ z >> 31


def random_index(seed: int, n: int, k: int, j: int) -> int:
    first = j * n // k
    return first + ((mixed(seed, j) >> 32) * ((j + 1) * n // k - first) >> 32)


def keys(v: Floats) -> NDArray[np.int64]:
    return (v.view(np.uint32) & 0x7FFFFFFF).astype(np.int64)


def largest(v: Floats, k: int) -> NDArray[np.int64]:
    return np.sort(np.argsort(-keys(v), kind="stable")[:k])


def above_threshold(v: Floats, k: int, seed: int) -> NDArray[np.int64]:
    n, threshold = len(v), 1
    mean = SAMPLES * k / n
    rank = int(mean + 3 * mean**0.5) + 2
    if n > SAMPLES and rank < SAMPLES:
        sample = keys(v)[[random_index(seed, n, SAMPLES, j) for j in range(SAMPLES)]]
        threshold = max(1, int(np.sort(sample)[-rank]))
    reached = keys(v) >= threshold
    if reached.sum() >= k:
        return largest(v, k)
    others = np.flatnonzero(~reached)[: k - reached.sum()]
    return np.sort(np.concatenate([np.flatnonzero(reached), others]))


def elias_fano(indices: NDArray[np.int64], n: int) -> bytes:
    """Bit by bit."""
    low = low_bits(n, len(indices))
    lows = [index >> bit & 1 for index in indices.tolist() for bit in range(low)]
    highs = [0] * (len(indices) + (n >> low) + 1)
    for j, index in enumerate(indices.tolist()):
        highs[(index >> low) + j] = 1
    return b"".join(words_of(bits) for bits in (lows, highs))


def words_of(bits: list[int]) -> bytes:
    return np.packbits(np.array(bits + [0] * (-len(bits) % 32), np.uint8), bitorder="little").tobytes()


def indices_of(data: bytes, n: int, k: int) -> list[int]:
    low = low_bits(n, k)
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little").tolist()
    highs = bits[-(-k * low // 32) * 32 :]
    ones = [place for place, bit in enumerate(highs) if bit]
    return [(one - j) << low | sum(bits[j * low + bit] << bit for bit in range(low)) for j, one in enumerate(ones)]


def signs(v: Floats) -> bytes:
    return words_of((v.view(np.uint32) >> 31).tolist())


def means(name: str, v: Floats) -> Floats:
    negative = np.signbit(v)
    if name == "efsignsgd":
        return np.array([total(np.abs(v)) / len(v)], np.float32)
    below = int(negative.sum())
    upper = total(np.where(negative, np.float32(0), v)) / (len(v) - below) if below < len(v) else 0.0
    return np.array([upper, total(np.where(negative, v, np.float32(0))) / below if below else 0.0], np.float32)


def total(terms: Floats) -> float:
    chunks = np.concatenate([terms, np.zeros(-len(terms) % CHUNK, np.float32)]).reshape(-1, CHUNK // LANES, LANES)
    return float(halved(added(np.array([halved(added(chunk)) for chunk in chunks], np.float64))))


def added(terms: NDArray[np.floating]) -> NDArray[np.floating]:
    """Lane by lane, in order."""
    rows = np.concatenate([terms.ravel(), np.zeros(-terms.size % LANES, terms.dtype)]).reshape(-1, LANES)
    lanes = np.zeros(LANES, terms.dtype)
    for row in rows:
        lanes = lanes + row
    return lanes


def halved(lanes: NDArray[np.floating]) -> np.floating:
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return lanes[0]


def quantised(v: Floats, seed: int | None) -> tuple[NDArray[np.int8], Floats]:
    q, scales = np.zeros(len(v), np.int8), np.zeros(-(-len(v) // QSGD_BUCKET), np.float32)
    for bucket in range(len(scales)):
        part = slice(bucket * QSGD_BUCKET, (bucket + 1) * QSGD_BUCKET)
        most = np.abs(v[part]).max()
        if most < 2.0**-100:
            continue
        scales[bucket] = most / np.float32(127)
        x = v[part] * (np.float32(127) / most)
        if seed is None:
            q[part] = np.rint(x)
        else:
            u = chances(mixed(seed, bucket) % 2**32, len(x))
            q[part] = np.minimum((x + np.float32(128) + u).astype(np.int32) - 128, 127)
    return q, scales


def chances(key: int, count: int) -> Floats:
    z = (key + np.arange(count, dtype=np.uint64) * 0x9E3779B9) % 2**32
    z = (z ^ z >> 16) * 0x7FEB352D % 2**32
    z = (z ^ z >> 15) * 0x846CA68B % 2**32
    return ((z ^ z >> 16) >> 8).astype(np.float32) * np.float32(2.0**-24)
