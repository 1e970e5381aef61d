"""Symbolic extents: a whole factor times a product of named dimensions, as `4*H` or `B*S*H`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from treadle.planner.errors import InputError

PARTS = ".parts"
"""Suffix of the dimension that counts the tensors which together make up another: one scalar for each of them."""


@dataclass(frozen=True, order=True)
class Dim:
    """`factor` times the product of `names`, which are sorted and may repeat."""

    names: tuple[str, ...] = ()
    factor: int = 1

    def __mul__(self, other: Dim | int) -> Dim:
        other = dim(other)
        return Dim(tuple(sorted((*self.names, *other.names))), self.factor * other.factor)

    __rmul__ = __mul__

    def __str__(self) -> str:
        factors = [str(self.factor)] if self.factor != 1 or not self.names else []
        return "*".join([*factors, *self.names])

    @property
    def one(self) -> bool:
        """Whether the extent is 1 whatever the dimensions are."""
        return not self.names and self.factor == 1

    def value(self, extents: Mapping[str, int]) -> int:
        """The extent when named dimensions have these extents. Raises InputError for one that is not among them."""
        for name in self.names:
            if name not in extents:
                known = f"one of {', '.join(sorted(extents))}" if extents else "a value for it"
                raise InputError(f"found dimension {name!r} without a value, expected {known}")
        return self.factor * prod(extents[name] for name in self.names)


ONE = Dim()
Shape = tuple[Dim, ...]


def dim(of: Dim | int) -> Dim:
    """A number or extent as an extent."""
    return of if isinstance(of, Dim) else Dim((), of)


def volume(shape: Iterable[Dim]) -> Dim:
    """How many elements a tensor of this shape has."""
    total = ONE
    for extent in shape:
        total = total * extent
    return total


def parts_of(extent: Dim) -> Dim:
    """How many tensors the dimension `extent`, which must be one name, stands for."""
    if extent.factor != 1 or len(extent.names) != 1:
        raise InputError(f"found the extent {extent}, expected a single named dimension that tensors may share")
    return Dim((extent.names[0] + PARTS,))


def shape_text(shape: Shape) -> str:
    """A shape as messages and generated code write it."""
    return f"[{', '.join(map(str, shape))}]"
