"""One grammar: powers of 1024 with an i or a bare letter, powers of 1000 with a B; shares, lists and ranges."""

from __future__ import annotations

from fractions import Fraction
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.planner.documents.quantities import (
    MOST,
    Quantity,
    Spread,
    format_quantity,
    parse_bytes,
    parse_list,
    parse_named,
    parse_number,
    parse_quantity,
    parse_values,
)
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.errors import InputError

any_quantity = partial(parse_quantity, share_of="all", where="--here")


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("7B", 7), ("64K", 65536), ("64kib", 65536), ("64KB", 64_000), ("75MB", 75_000_000),
     ("1.5GiB", 3 * 2**29), ("2 TB", 2 * 10**12), ("0.5P", 2**49)],
)  # fmt: skip
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MB", "1.5", "0.5B", "-1K", "1e3", "1iB KB", "1 M B x"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="expected"):
        parse_bytes(text)


@pytest.mark.parametrize("size", [0, 1, 1000, 1024, 1536, 2**20, 2**50])
def test_a_printed_size_reads_as_itself(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == size


@pytest.mark.parametrize("digits", ["9" * 41, "9" * 5000, "1." + "0" * 5000])
def test_digits_without_end_are_no_quantity(digits: str) -> None:
    for parse in (parse_bytes, parse_number, any_quantity, lambda text: any_quantity(text + "x")):
        with pytest.raises(InputError, match="expected a"):
            parse(digits)


@pytest.mark.parametrize(
    "text", ["1e999999999x", "1e-999999999x", "1/0x", "nanx", "infx", "-1x", "8GiBx", "x", "", "0x"]
)
def test_shares_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match=r"^--here: found .*, expected"):
        any_quantity(text)


@pytest.mark.parametrize(
    ("text", "share"),
    [("0.6x", Fraction(3, 5)), ("1X", 1), ("3/4x", Fraction(3, 4)), (".5x", Fraction(1, 2)), ("5e-1x", 0.5)],
)
def test_shares_as_people_write_them(text: str, share: Quantity) -> None:
    found = any_quantity(text)
    assert isinstance(found, Fraction)
    assert found == share


@given(st.integers(1, MOST // 2) | st.fractions(Fraction(1, 1000), 1000))
def test_what_is_printed_is_read_again_within_its_digits(quantity: Quantity) -> None:
    found = any_quantity(format_quantity(quantity))
    assert isinstance(found, Fraction) == isinstance(quantity, Fraction)
    assert abs(found - quantity) <= Fraction(1, 1000) * quantity
    assert isinstance(quantity, Fraction) or any_quantity(str(quantity)) == quantity


@given(
    st.lists(st.integers(1, 2**20), min_size=1, max_size=8)
    | st.lists(st.fractions(1, 9, max_denominator=8), min_size=1)
)
def test_lists_and_ranges_of_what_is_printed_are_read_again(values: list[Quantity]) -> None:
    texts = [f"{value}x" if isinstance(value, Fraction) else str(value) for value in values]
    spread = Spread.evenly(9, 100)
    assert list(parse_list(",".join(texts), any_quantity)) == values
    assert list(parse_values(",".join(texts), any_quantity, spread, where="--here")) == sorted(set(values))
    low, high = (text for _, text in (min(zip(values, texts, strict=True)), max(zip(values, texts, strict=True))))
    for dots in ("..", ":"):
        swept = parse_values(f"{low}{dots}{high}:3", any_quantity, spread, where="--here")
        assert (swept[0], swept[-1]) == (min(values), max(values))
        assert len(swept) <= 3


def test_ranges_go_by_even_steps_or_by_a_factor() -> None:
    even, double = Spread.evenly(9, 100), Spread.by_factor(2, 64)
    assert parse_values("8..10:3", any_quantity, even, where="") == (8, 9, 10)
    assert parse_values("0.5x:1x:3", any_quantity, even, where="") == (Fraction(1, 2), Fraction(3, 4), 1)
    assert parse_values("3..20", parse_number, double, where="") == (3, 6, 12)
    assert parse_values("1K:1M:32", parse_number, double, where="") == (2**10, 2**15, 2**20)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("8K..1K", "smaller end first"),
        ("1..", "found '', expected a number"),
        ("1..8:1", "with :5 behind it for 5 times"),
        ("1..8:", "with :5 behind it"),
        ("1..8:2:3", "with :5 behind it"),
        ("1..2000P", "at most"),
        ("1..1P:2", ""),
        (",".join(map(str, range(1, 70))), "over 64 values"),
    ],
)
def test_ranges_that_make_no_sense_are_refused(text: str, reason: str) -> None:
    item = partial(parse_number, most=2**60)
    spread = Spread.by_factor(2, 64)
    if not reason:
        assert len(parse_values(text, item, spread, where="--here")) == 51
        return
    with pytest.raises(InputError, match=reason):
        parse_values(text, item, spread, where="--here")


def test_names_stand_before_quantities_once_each() -> None:
    assert parse_named(["N=1M", " B=8 "], "NAME=NUMBER", where="--bind") == {"N": "1M", "B": "8"}
    for texts in (["N"], ["=1"], ["N="], ["N=1", "N=2"]):
        with pytest.raises(InputError, match="--bind: found"):
            parse_named(texts, "NAME=NUMBER", where="--bind")
