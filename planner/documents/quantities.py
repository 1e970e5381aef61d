"""The grammar of quantities on command lines and in documents, and how they are printed.

size   =  4096 | 64K | 64KiB | 64KB      K, M, G, T and P are powers of 1024, of 1000 where only a B follows
number =  4096 | 64K                     of elements, with the same letters
share  =  0.5x | 3/4x                    of what the option says
list   =  1K,64K,1M                      several of a kind
range  =  LOW..HIGH | LOW..HIGH:N        both ends included; N is the number of even steps' ends, or the factor from
                                         one to the next, as the option says; LOW:HIGH is the same range
named  =  NAME=QUANTITY                  of a dimension
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import NamedTuple, TypeVar

from treadle.planner.documents.scalars import format_bytes
from treadle.planner.errors import InputError

Quantity = int | Fraction
"""Bytes or elements, or a share."""
Q = TypeVar("Q", int, Quantity)
MOST = 2**62
"""The most that a document holds."""

_PREFIXES = ("", "k", "m", "g", "t", "p")
_DIGITS = r"[0-9]{1,40}"  # longer ones are no quantity, and Python refuses to read very long ones
_SIZE = re.compile(rf"\s*({_DIGITS}(?:\.{_DIGITS})?)\s*([kmgtp]?)(i?b)?\s*", re.IGNORECASE)
_PART = rf"(?:{_DIGITS}(?:\.[0-9]{{0,40}})?|\.{_DIGITS})(?:e[+-]?[0-9]{{1,2}})?|{_DIGITS}/{_DIGITS}"
_SHARE = re.compile(rf"\s*({_PART})\s*x\s*", re.IGNORECASE)
_NEGATIVE = re.compile(r"\s*-\s*\.?[0-9]")
_RANGE = re.compile(r"([^:]*?)(?:\.\.|:)([^:]*)(?::(.*))?", re.DOTALL)


def parse_bytes(text: str, *, least: int = 0, where: str = "<size>") -> int:
    """Bytes of a size: `4096`, `64K` and `64KiB` (65,536), `64KB` (64,000), up to P.

    Raises InputError for anything else, a part of a byte and less than `least` included.
    """
    return _whole(text, "a size such as 4096, 64KiB or 8GiB", " byte", least, None, where)


def parse_number(text: str, *, least: int = 1, most: int = MOST, where: str = "<number>") -> int:
    """A number of elements: `4096`, `1K`, `1M`. Raises InputError for anything else and outside of least to most."""
    return _whole(text, "a number such as 4096, 64K or 1M", "", least, most, where)


def _whole(text: str, expected: str, unit: str, least: int, most: int | None, where: str) -> int:
    match = _SIZE.fullmatch(text)
    power = 0 if match is None else _PREFIXES.index(match[2].lower())
    if match is None or (power == 0 and "." in match[1]):
        raise InputError(f"{_found(text)}, expected {expected}", where=where)
    decimal = (match[3] or "").lower() == "b"
    count = int(Fraction(match[1]) * (1000 if decimal else 1024) ** power)
    if count < least:
        raise InputError(f"found {text!r}, expected at least {least}{unit}", where=where)
    if most is not None and count > most:
        raise InputError(f"found {text!r}, expected at most {most:,}", where=where)
    return count


def _found(text: str) -> str:
    return f"found {text!r}" + (", which is negative" if _NEGATIVE.match(text) else "")


def parse_quantity(text: str, *, share_of: str, where: str) -> Quantity:
    """`8GiB` or any other size in bytes, `0.5x` or `3/4x` as a share of `share_of`.

    Raises InputError for anything else, for nothing, and for more than a document holds.
    """
    try:
        if (match := _SHARE.fullmatch(text)) is not None:
            quantity: Quantity = Fraction(match[1])
        else:
            quantity = parse_bytes(text, where=where)
    except (InputError, ZeroDivisionError):
        expected = f"a size such as 8GiB, or a share of {share_of} such as 0.5x"
        raise InputError(f"{_found(text)}, expected {expected}", where=where) from None
    if not 0 < quantity <= MOST:
        raise InputError(f"found {text!r}, expected more than nothing and at most 2^62", where=where)
    return quantity


def format_quantity(quantity: Quantity) -> str:
    """`0.5x` or `8GiB`: three to four digits of it, in one word that reads as a quantity again."""
    return f"{float(quantity):.4g}x" if isinstance(quantity, Fraction) else format_bytes(quantity).replace(" ", "")


class Spread(NamedTuple):
    """How a range becomes values: what the N in `LOW..HIGH:N` means, and what it is when it is left out."""

    values: Callable[[Quantity, Quantity, int], list[Quantity]]
    usual: int
    most_step: int
    most: int
    """Largest number of values."""
    meaning: str

    @staticmethod
    def evenly(usual: int, most: int) -> Spread:
        """N values in equal steps."""
        return Spread(_evenly, usual, most, most, f"for 5 values (2 to {most})")

    @staticmethod
    def by_factor(usual: int, most: int) -> Spread:
        """Each value N times the one before, from the lower end on."""
        return Spread(partial(_by_factor, most=most), usual, MOST, most, "for 5 times from one to the next (from 2 on)")


def parse_values(text: str, item: Callable[[str], Q], spread: Spread, *, where: str) -> tuple[Q, ...]:
    """The values of a list or range of what `item` parses, ascending, each once.

    Raises InputError for anything else, sizes among shares, and more values than `spread` has at most.
    """
    match = _RANGE.fullmatch(text)
    values = parse_list(text, item) if match is None else (item(match[1]), item(match[2]))
    if len({isinstance(value, Fraction) for value in values}) > 1:
        raise InputError(f"found {text!r}, expected sizes alone or shares alone", where=where)
    if match is not None:
        low, high = values
        if low > high:
            raise InputError(f"found {text!r}, expected the smaller end first", where=where)
        values = tuple(spread.values(low, high, _step(text, match[3], spread, where)))  # type: ignore[arg-type]
    if len(values) > spread.most:
        raise InputError(f"found over {spread.most} values, expected fewer", where=where)
    return tuple(sorted(set(values)))


def parse_list(text: str, item: Callable[[str], Q]) -> tuple[Q, ...]:
    """What `item` parses, comma between, in the order of the text."""
    return tuple(item(word.strip()) for word in text.split(","))


def parse_named(texts: Sequence[str], example: str, *, where: str) -> dict[str, str]:
    """`N=1M` as name and text. Raises InputError for anything else, with `example`, or for a repeated name."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.strip().partition("=")
        if not equals or not name or not value:
            raise InputError(f"found {text!r}, expected {example}", where=where)
        if name in found:
            raise InputError(f"found {name} twice, expected each dimension once", where=where)
        found[name] = value
    return found


def _step(text: str, step: str | None, spread: Spread, where: str) -> int:
    if step is None:
        return spread.usual
    try:
        return parse_number(step, least=2, most=spread.most_step, where=where)
    except InputError:
        expected = f"a range such as LOW..HIGH, with :5 behind it {spread.meaning}"
        raise InputError(f"found {text!r}, expected {expected}", where=where) from None


def _evenly(low: Quantity, high: Quantity, count: int) -> list[Quantity]:
    values = [low + Fraction(high - low) * place / (count - 1) for place in range(count)]
    return list(values if isinstance(low, Fraction) else map(round, values))


def _by_factor(low: Quantity, high: Quantity, factor: int, *, most: int) -> list[Quantity]:
    """At most one more than `most`, which the caller refuses."""
    values = [low]
    while values[-1] * factor <= high and len(values) <= most:
        values.append(values[-1] * factor)
    return values
