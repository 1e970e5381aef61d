"""Names of compressors, and the sizes of their payloads."""

from __future__ import annotations

from math import comb, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.planner.errors import InputError
from treadle.planner.machine.compressors import ALGORITHMS, compressor, index_bytes, low_bits, matrix


def test_names_are_canonical() -> None:
    assert compressor("dgc").name == "dgc:0.01"
    assert compressor("topk:0.0100").name == "topk:0.01"
    assert compressor("powersgd:4").name == "powersgd:4"
    assert compressor("fp16").name == "fp16"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("zip", "expected one of randomk, topk"),
        ("fp16:2", "expected fp16, which has no parameter"),
        ("dgc:0", "expected a ratio above 0 and at most 1"),
        ("dgc:1.5", "expected a ratio above 0 and at most 1"),
        ("dgc:nan", "expected a ratio above 0 and at most 1"),
        ("dgc:", "expected a ratio above 0 and at most 1"),
        ("powersgd:0.5", "expected a rank of 1 to 64"),
        ("powersgd:65", "expected a rank of 1 to 64"),
    ],
)
def test_other_names_are_refused(name: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        compressor(name)


def test_published_sizes() -> None:
    """Espresso, section 4.4.1: 96.9 % saved by signs; cast to 16 bits half; random-k sends values only."""
    elements = 1 << 20
    raw = 4 * elements
    assert compressor("efsignsgd").wire_bytes(elements) == elements // 8 + 4
    assert 1 - compressor("efsignsgd").wire_bytes(elements) / raw == pytest.approx(0.969, abs=5e-4)
    assert compressor("onebit").wire_bytes(elements) == elements // 8 + 8
    assert compressor("randomk:0.01").wire_bytes(elements) == 4 * 10485
    assert compressor("fp16").wire_bytes(elements) == raw // 2
    assert compressor("int8").wire_bytes(elements) == elements + 4 * 2048
    assert compressor("powersgd:4").wire_bytes(elements) == 4 * 2048 * 4


@given(st.integers(1, 10**6), st.floats(0.001, 0.1))
def test_indices_are_nearly_as_short_as_they_can_be(elements: int, ratio: float) -> None:
    """Within the words that fill up two sections, and 0.6 bits an index, of the logarithm of the number of subsets."""
    kept = max(1, int(elements * ratio))
    bits = 8 * index_bytes(elements, kept)
    assert bits >= kept * low_bits(elements, kept) + kept + (elements >> low_bits(elements, kept))
    if elements <= 2000:
        assert bits <= log2(comb(elements, kept)) + 0.6 * kept + 64 + 2 * log2(elements + 1)


@given(st.integers(0, 10**7), st.sampled_from(sorted(ALGORITHMS)))
def test_payloads_are_whole_words_and_grow_with_the_size(elements: int, name: str) -> None:
    one = compressor(name)
    assert one.wire_bytes(elements) % 4 == 0
    assert (one.wire_bytes(elements) == 0) == (elements == 0)


@given(st.integers(1, 10**7))
def test_a_matrix_holds_all_elements_and_no_row_too_many(elements: int) -> None:
    rows, columns = matrix(elements)
    assert rows * columns >= elements > rows * (columns - 1)
    assert rows <= columns <= rows + 3
