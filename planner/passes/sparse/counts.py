"""The counts of one gradient by which schemes are priced."""

from __future__ import annotations

from functools import cached_property

from treadle.planner.passes.sparse.hashing import fullest_hashed
from treadle.planner.passes.sparse.problem import COUNT_BYTES, INDEX_BYTES, VALUE_BYTES, SparseGradient, SparseProblem
from treadle.planner.passes.sparse.schemes import Scheme


class GradientCounts:
    """The counts of `gradient` in `problem`, by participants where a method takes their number m from 1 on."""

    def __init__(self, problem: SparseProblem, gradient: SparseGradient) -> None:
        self.gradient = gradient
        self.machines = problem.machines
        self.shard = problem.shard(gradient)
        self.width = gradient.width
        self.core = 1 << (self.machines.bit_length() - 1)
        """Participants of a hierarchy: the largest power of two."""
        self.folds = self.machines > self.core
        self.devices = problem.devices
        self.dense = gradient.form == "dense"
        self.entry = INDEX_BYTES + VALUE_BYTES * self.width
        """Bytes of a unit with its index."""

    def union(self, participants: int) -> int:
        """Non-zero units in a sum."""
        return self.gradient.unions[participants - 1]

    def fullest(self, scheme: Scheme) -> tuple[int, ...]:
        """Non-zero units in the fullest part of the scheme, in sums over 1 to n participants. A hierarchy that folds
        has fewer and larger parts than there are participants."""
        found = self._hashed if scheme.balance == "balanced" else self._even
        return found[scheme.communication == "hierarchy"]

    def parts(self, scheme: Scheme) -> int:
        return self.core if scheme.communication == "hierarchy" else self.machines

    def covered(self, scheme: Scheme) -> int:
        """Units that the largest part covers, zero or not."""
        if scheme.balance == "balanced":
            return fullest_hashed(self.shard, self.machines)
        return -(-self.shard // self.machines)

    @property
    def summed(self) -> int:
        """Non-zero units of the sum of all shards."""
        return min(self.gradient.units, self.devices * self.union(self.machines))

    @property
    def written(self) -> int:
        """Units of the sum that every rank writes in the end."""
        return self.gradient.units if self.dense else self.summed

    @property
    def within(self) -> tuple[int, int]:
        """Units in the messages of ranks of one node: of their own gradients, and of the sum of all."""
        whole = self.shard if self.dense else self.gradient.occurrences
        return min(self.union(1), whole), self.union(self.machines)

    def coo(self, units: int) -> int:
        """Bytes of one message of indices and values."""
        return COUNT_BYTES + units * self.entry

    def several(self, parts: int, fullest: tuple[int, ...], participants: int) -> int:
        """Bytes of `parts` such messages, of parts of one sum."""
        return COUNT_BYTES * parts + self.entry * min(parts * fullest[participants - 1], self.union(participants))

    @cached_property
    def stages(self) -> tuple[int, ...]:
        """Participants whose sum one of a hierarchy holds before each stage."""
        first = 2 if self.folds else 1
        return tuple(min(self.machines, first << stage) for stage in range(self.core.bit_length() - 1))

    @cached_property
    def _even(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.gradient.even, self._larger(self.gradient.even)

    @cached_property
    def _hashed(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.gradient.hashed, self._larger(self.gradient.hashed)

    def _larger(self, fullest: tuple[int, ...]) -> tuple[int, ...]:
        if not self.folds:
            return fullest
        scaled = (-(-most * self.machines // self.core) for most in fullest)
        return tuple(map(min, scaled, self.gradient.unions))
