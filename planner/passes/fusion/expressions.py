"""Exact counts in symbolic dimensions: sums of products of dimensions and of 1/n, as `2N+5N/n`; n ranks in a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from treadle.planner.passes.fusion.dims import Dim
from treadle.planner.passes.fusion.program import Bindings

_Term = tuple[tuple[str, ...], int]
"""Sorted names of dimensions, and the power of 1/n that they are multiplied by."""


@dataclass(frozen=True)
class Expression:
    """The sum of `terms`: sorted, none of them zero."""

    terms: tuple[tuple[_Term, Fraction], ...] = ()

    @classmethod
    def of(cls, extent: Dim | int, *, share: int = 0) -> Expression:
        """`extent` times (1/n)^`share`."""
        extent = extent if isinstance(extent, Dim) else Dim((), extent)
        return cls._sum({(extent.names, share): Fraction(extent.factor)})

    @classmethod
    def _sum(cls, terms: Mapping[_Term, Fraction]) -> Expression:
        def order(item: tuple[_Term, Fraction]) -> tuple[int, tuple[str, ...], int]:
            (names, share), _ = item
            return -len(names), names, share

        return cls(tuple(sorted(((key, value) for key, value in terms.items() if value), key=order)))

    def __add__(self, other: Expression) -> Expression:
        if not other.terms:
            return self
        total = dict(self.terms)
        for key, value in other.terms:
            total[key] = total.get(key, Fraction(0)) + value
        return self._sum(total)

    def __sub__(self, other: Expression) -> Expression:
        return self + other.scaled(-1)

    def scaled(self, factor: int | Fraction) -> Expression:
        return self._sum({key: value * factor for key, value in self.terms})

    def shared(self) -> Expression:
        """Divided by n."""
        return self._sum({(names, share + 1): value for (names, share), value in self.terms})

    def value(self, bindings: Bindings) -> Fraction:
        """The number for these extents and ranks. Raises InputError for a dimension without a value."""
        extents = bindings.values
        return sum(
            (
                value * Dim(names).value(extents) / Fraction(bindings.ranks) ** share
                for (names, share), value in self.terms
            ),
            Fraction(0),
        )

    def __str__(self) -> str:
        text = "".join(_spelled(*key, value) for key, value in self.terms)
        return text.removeprefix("+") or "0"


ZERO = Expression()


def _spelled(names: tuple[str, ...], share: int, value: Fraction) -> str:
    size = abs(value)
    product = "*".join(names)
    whole = (str(size.numerator) if size.numerator != 1 or not names else "") + product
    under = [str(size.denominator)] * (size.denominator != 1) + ["n" if share == 1 else f"n^{share}"] * (share > 0)
    return ("-" if value < 0 else "+") + whole + "".join(f"/{part}" for part in under)
