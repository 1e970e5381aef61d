"""What gradient compressors put on the wire: their names, and the size of a payload as a function of the size alone.

`randomk:0.01` is an algorithm with its ratio, `powersgd:4` one with its rank. A payload is a row of sections, each
filled up to whole words of four bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property
from math import isqrt
from typing import Literal

from treadle.planner.errors import InputError

Parameter = Literal["ratio", "rank", "none"]
QSGD_BUCKET = 512
"""Elements that share a scale in `qsgd` and `int8` payloads."""
MAX_POWERSGD_RANK = 64


@dataclass(frozen=True)
class CompressionAlgorithm:
    """One compression algorithm.

    summable: payloads of all ranks can be added up by an allreduce. messages: collectives that such an allreduce takes.
    feedback: what a payload loses is kept on the rank and added to the next gradient.
    """

    name: str
    parameter: Parameter
    summary: str
    default: float = 0.0
    summable: bool = False
    messages: int = 1
    feedback: bool = True


ALGORITHMS = {
    each.name: each
    for each in (
        CompressionAlgorithm("randomk", "ratio", "the same random elements on all ranks", 0.01, summable=True),
        CompressionAlgorithm("topk", "ratio", "the elements of the largest magnitude", 0.01),
        CompressionAlgorithm(
            "dgc", "ratio", "top-k by a sampled threshold, with momentum correction and clipping", 0.01
        ),
        CompressionAlgorithm("efsignsgd", "none", "signs, and the mean magnitude"),
        CompressionAlgorithm("onebit", "none", "signs, and the means of positive and of negative elements"),
        CompressionAlgorithm("qsgd", "none", "8 bits an element, rounded at random, a scale for every 512"),
        CompressionAlgorithm("int8", "none", "8 bits an element, rounded to nearest, a scale for every 512"),
        CompressionAlgorithm("fp16", "none", "IEEE half precision", summable=True, feedback=False),
        CompressionAlgorithm("bf16", "none", "bfloat16", summable=True, feedback=False),
        CompressionAlgorithm("powersgd", "rank", "two low-rank factors", 4, summable=True, messages=2),
    )
}


@dataclass(frozen=True)
class Compressor:
    """An algorithm with its parameter."""

    algorithm: CompressionAlgorithm
    parameter: float

    @cached_property
    def name(self) -> str:
        """Its canonical name."""
        if self.algorithm.parameter == "none":
            return self.algorithm.name
        return f"{self.algorithm.name}:{self.parameter:g}"

    def kept(self, elements: int) -> int:
        """How many of `elements` a sparse payload holds: at least one."""
        return min(elements, max(1, int(elements * self.parameter)))

    def wire_bytes(self, elements: int) -> int:
        """Bytes of the payload of `elements` float32 values."""
        if elements == 0:
            return 0
        match self.algorithm.name:
            case "randomk":
                return 4 * self.kept(elements)
            case "topk" | "dgc":
                kept = self.kept(elements)
                return 4 * kept + index_bytes(elements, kept)
            case "efsignsgd":
                return words(elements, 32) + 4
            case "onebit":
                return words(elements, 32) + 8
            case "qsgd" | "int8":
                return words(elements, 4) + 4 * -(-elements // QSGD_BUCKET)
            case "fp16" | "bf16":
                return words(elements, 2)
            case _:
                rows, columns = matrix(elements)
                return 4 * (rows + columns) * min(int(self.parameter), rows, columns)


def keeps_residual(name: str | None) -> bool:
    """Whether a group compressed by `name` keeps what its payloads lose; None is no compressor, and one that is not
    treadle's does."""
    algorithm = ALGORITHMS.get((name or "").partition(":")[0])
    return name is not None and (algorithm is None or algorithm.feedback)


def words(count: int, per_word: int) -> int:
    """Bytes of the words that hold `count` items."""
    return 4 * -(-count // per_word)


def low_bits(elements: int, kept: int) -> int:
    """Bits of an index that are written as they are (Elias, Efficient Storage and Retrieval by Content and Address of
    Static Files: the floor of log2(elements / kept))."""
    return (elements // kept).bit_length() - 1


def index_bytes(elements: int, kept: int) -> int:
    """Bytes of `kept` ascending indices below `elements`: their low bits, then the differences of their high bits in
    unary, a one for every index and a zero for every value of the high bits. For ratios up to 0.1 that is at most 0.6
    bits an index above the logarithm of the number of subsets (the coding of Elias and of Fano)."""
    low = low_bits(elements, kept)
    return words(kept * low, 32) + words(kept + (elements >> low) + 1, 32)


def matrix(elements: int) -> tuple[int, int]:
    """Rows and columns of the nearly square matrix that holds `elements`, filled up with zeros."""
    rows = max(1, isqrt(elements))
    return rows, -(-elements // rows)


@cache
def compressor(name: str, where: str = "--compressor") -> Compressor:
    """The compressor that `ALGORITHM[:RATIO|:RANK]` names. Raises InputError for another text."""
    head, colon, tail = name.partition(":")
    algorithm = ALGORITHMS.get(head)
    if algorithm is None:
        raise InputError(f"found {name!r}, expected one of {', '.join(ALGORITHMS)}", where=where)
    if not colon:
        return Compressor(algorithm, algorithm.default)
    if algorithm.parameter == "none":
        raise InputError(f"found {name!r}, expected {head}, which has no parameter", where=where)
    value = float(tail) if re.fullmatch(r"[0-9]+(\.[0-9]+)?(e-?[0-9]{1,2})?", tail) else -1.0
    if algorithm.parameter == "ratio" and not 0 < value <= 1:
        raise InputError(f"found {name!r}, expected a ratio above 0 and at most 1, such as {head}:0.01", where=where)
    if algorithm.parameter == "rank" and not (value.is_integer() and 1 <= value <= MAX_POWERSGD_RANK):
        raise InputError(f"found {name!r}, expected a rank of 1 to {MAX_POWERSGD_RANK}, such as {head}:4", where=where)
    return Compressor(algorithm, value)
