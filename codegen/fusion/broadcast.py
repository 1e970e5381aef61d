"""Where the elements of a tensor that is broadcast lie, as C++."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import prod

from treadle.planner.passes.fusion.dims import ONE, PARTS, Dim, Shape
from treadle.planner.passes.fusion.program import Bindings


@dataclass(frozen=True)
class EndTable:
    """A table of C++ with the ends of the tensors that make up a dimension."""

    name: str
    ends: tuple[int, ...]


def part_ends(bindings: Bindings, owner: str, extent: Dim) -> EndTable:
    """The table of a dimension, or of the count of its tensors; `owner` is part of its name."""
    (name,) = extent.names
    name = name.removesuffix(PARTS)
    sizes = bindings.parts.get(name, (bindings.extents[name],))
    return EndTable(f"{owner}_{name}_ENDS", tuple(accumulate(sizes)))


def extended(shape: Shape, whole: Shape) -> Shape:
    """With leading extents of 1, as many dimensions as `whole`."""
    return (ONE,) * (len(whole) - len(shape)) + shape


def split(shape: Shape, whole: Shape) -> tuple[Dim, ...]:
    """Extents that count the tensors of a dimension of `whole`."""
    return tuple(own for own, of in zip(extended(shape, whole), whole, strict=True) if own not in (of, ONE))


def index_of(shape: Shape, whole: Shape, bindings: Bindings, owner: str) -> tuple[str, int]:
    """The index into a tensor of `shape` for element i of a tensor of the shape `whole`, both in row-major order, and
    after how many elements it begins anew. Tables of `split` extents are those of `owner`."""
    own = extended(shape, whole)
    extents = [extent.value(bindings.values) for extent in whole]
    counts = [own[at] not in (whole[at], ONE) for at in range(len(whole))]
    moves = [counts[at] or (own[at] != ONE and extents[at] > 1) for at in range(len(whole))]
    terms, stride, end = [], 1, len(whole)
    while end:
        begin = end - 1
        if not moves[begin]:
            end = begin
            continue
        while begin and not counts[begin] and moves[begin - 1] and not counts[begin - 1]:
            begin -= 1
        inner, run = prod(extents[end:]), prod(extents[begin:end])
        term = f"i / {inner}" if inner > 1 else "i"
        term = f"{term} % {run}" if prod(extents[:begin]) > 1 else term
        if counts[begin]:
            table = part_ends(bindings, owner, own[begin])
            term, run = f"part_of({table.name}, {len(table.ends)}, {term})", len(table.ends)
        terms.append(f"{term} * {stride}" if stride > 1 else term)
        stride, end = stride * run, begin
    first = moves.index(True) if any(moves) else len(whole)
    return " + ".join(reversed(terms)) or "0", prod(extents[first:])
