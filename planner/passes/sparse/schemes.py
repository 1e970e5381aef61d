"""The schemes by which participants can add up sparse gradients: four dimensions, and the formats of messages.

The dimensions and their 15 combinations are those of "Zen: Near-Optimal Sparse Tensor Synchronization for Distributed
DNN Training", section 3.1; the published schemes are classified as there.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Communication = Literal["ring", "hierarchy", "point-to-point"]
"""Along a ring, between partners at doubling distances, or everyone with everyone at once."""
Aggregation = Literal["incremental", "one-shot"]
"""Payloads are added up at every stage, or only after the last one. Point-to-point has a single stage."""
Partition = Literal["centralized", "parallel"]
"""A gradient is added up as a whole by everyone, or in parts, each by its owner, which are then handed out."""
Balance = Literal["balanced", "imbalanced"]
"""Parts that a hash function deals out, or even ranges of indices."""
Format = Literal["coo", "bitmap", "blocks", "dense"]
"""Indices and values; a bit for each unit of a part and the values; a bit for each block of units and the values of
whole blocks; all values."""
Order = Literal["worker", "tree", "ring", "none"]
"""In which order a sum adds the participants: by their numbers, as a tree, from one after its owner on, or in another
one on each participant, whose sums of floats then differ."""


class Scheme(NamedTuple):
    """One scheme. `push` is the format in which contributions travel, `pull` that of the sums of a part."""

    name: str
    communication: Communication
    aggregation: Aggregation
    partition: Partition
    balance: Balance | None
    push: Format
    pull: Format | None
    published: str | None = None
    """The system whose scheme it is."""

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The place of the scheme in the four dimensions."""
        one_shot = self.communication == "point-to-point"
        found = (self.communication, None if one_shot else self.aggregation, self.partition, self.balance)
        return tuple(each for each in found if each is not None)

    def order(self, participants: int) -> Order:
        """In which order its sums add the participants."""
        if self.aggregation == "one-shot" or participants <= 2:
            return "worker"
        if self.communication == "hierarchy":
            return "tree"
        return "ring" if self.partition == "parallel" else "none"


def _combinations() -> tuple[Scheme, ...]:
    published = {
        ("point-to-point", "one-shot", "centralized", None): ("agsparse", "AGsparse"),
        ("hierarchy", "incremental", "centralized", None): ("sparcml", "SparCML"),
        ("point-to-point", "one-shot", "parallel", "imbalanced"): ("sparse-ps", "Sparse PS"),
        ("point-to-point", "one-shot", "parallel", "balanced"): ("balanced", "Balanced Parallelism"),
    }
    divisions: tuple[tuple[Partition, Balance | None], ...] = (
        ("centralized", None),
        ("parallel", "imbalanced"),
        ("parallel", "balanced"),
    )
    stages: tuple[tuple[Communication, Aggregation], ...] = (
        ("point-to-point", "one-shot"),
        ("hierarchy", "incremental"),
        ("hierarchy", "one-shot"),
        ("ring", "incremental"),
        ("ring", "one-shot"),
    )
    found = []
    for communication, aggregation in stages:
        for partition, balance in divisions:
            words = [communication, aggregation, partition, *([balance] if balance else [])]
            default = "-".join(words), None
            name, system = published.get((communication, aggregation, partition, balance), default)
            pull: Format | None = "coo" if partition == "parallel" else None
            found.append(Scheme(name, communication, aggregation, partition, balance, "coo", pull, system))
    return tuple(found)


COMBINATIONS = _combinations()
"""The 15 combinations of the dimensions, with COO messages."""
DENSE = Scheme("dense", "point-to-point", "one-shot", "parallel", "imbalanced", "dense", "dense", "dense allreduce")
"""As many bytes as a ring allreduce, and sums in the order of participants. Dense parts are all alike."""
OMNIREDUCE = Scheme(
    "omnireduce", "point-to-point", "one-shot", "parallel", "imbalanced", "blocks", "blocks", "OmniReduce"
)
RANGES = Scheme("ranges", "point-to-point", "one-shot", "parallel", "imbalanced", "coo", "bitmap")
"""Sparse PS with bitmaps in the pull: nothing to hash where the non-zero units lie evenly."""
ZEN = Scheme("zen", "point-to-point", "one-shot", "parallel", "balanced", "coo", "bitmap", "Zen")
SCHEMES = (DENSE, *COMBINATIONS, OMNIREDUCE, RANGES, ZEN)
BY_NAME = {scheme.name: scheme for scheme in SCHEMES}
