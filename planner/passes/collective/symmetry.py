"""A sketch's symmetries on global ranks: rotations in shorthand, permutations as listed (TACCL, section 5.4).

A symmetry is a permutation pi of the ranks and a partition of them into blocks. A transfer over s -> d is tied to its
image over pi(s) -> pi(d) where s and d lie in one block; pi maps blocks onto blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from treadle.planner.documents.sketch import Sketch
from treadle.planner.errors import InputError


@dataclass(frozen=True)
class RankMap:
    """`perm[r]` is where rank r goes, `block[r]` the number of its block; `path` is where the sketch says so."""

    path: str
    perm: tuple[int, ...]
    block: tuple[int, ...]


def rank_maps(sketch: Sketch, ranks: int, per_node: int, root: int | None = None) -> Iterator[RankMap]:
    """The sketch's symmetries; with a `root`, only listed permutations that leave it in place (rotations move all).

    An offset o in groups of g ranks rotates r to (r // g) * g + (r % g + o) % g; blocks are the groups, or as many
    ranks as a third number says (the rule that TACCL prints fails for ranks above g). A permutation of one node's
    devices acts in every node at once. Raises InputError for sizes that do not fit the ranks.
    """
    where = f"sketch {sketch.name}"
    for i, (offset, group, *wide) in enumerate(sketch.symmetry_offsets if root is None else ()):
        path = f"$.symmetry_offsets[{i}]"
        block = wide[0] if wide else group
        for size, what in ((group, "groups"), (block, "blocks")):
            if ranks % size:
                raise InputError(
                    f"found {what} of {size} ranks, expected a divisor of the {ranks} ranks of this hardware",
                    where=where,
                    path=path,
                )
        perm = tuple(rotated(rank, offset, group) for rank in range(ranks))
        yield RankMap(path, perm, tuple(rank // block for rank in range(ranks)))
    for i, symmetry in enumerate(sketch.symmetries):
        path = f"$.symmetries[{i}]"
        size = len(symmetry.perm)
        if size not in (ranks, per_node):
            raise InputError(
                f"found a permutation of {size} ranks, expected {ranks}"
                + (f", or {per_node} for the devices of one node" if per_node < ranks else ""),
                where=where,
                path=f"{path}.perm",
            )
        number = {rank: n for n, members in enumerate(symmetry.partition) for rank in members}
        blocks = len(symmetry.partition)
        perm = tuple(rank - rank % size + symmetry.perm[rank % size] for rank in range(ranks))
        of = tuple(rank // size * blocks + number[rank % size] if number else 0 for rank in range(ranks))
        if root is None or perm[root] == root:
            yield RankMap(path, perm, of)


def rotated(rank: int, offset: int, group: int) -> int:
    """`rank` after a rotation by `offset` inside its group of `group` consecutive ranks."""
    return rank // group * group + (rank % group + offset) % group
