"""Bytes, messages and rounds of a scheme, counted again for the checker: those of the busiest participant.

Participants are numbered 1 to n here, so `union[m]` are the units of m of them. A hierarchy has as many parts as the
largest power of two of participants, its core; the others first hand what they have to one of the core, and get the sum
in the end. A core participant then stands for up to two.
"""

from __future__ import annotations

from dataclasses import dataclass

from treadle.planner.passes.sparse.hashing import fullest_hashed
from treadle.planner.passes.sparse.problem import BlockCounts, SparseGradient, SparseProblem
from treadle.planner.passes.sparse.schemes import Format, Scheme

WORD = 4
WORD_BITS = 32


@dataclass(frozen=True)
class ExchangeSize:
    """One gradient exchanged by one scheme. `shard` are the units of a rank, `part` those of the largest part."""

    scheme: Scheme
    n: int
    width: int
    shard: int
    part: int
    union: tuple[int, ...]
    fullest: tuple[int, ...]
    """Non-zero units of m participants in the fullest part."""
    blocks: BlockCounts | None

    @property
    def core(self) -> int:
        return 1 << (self.n.bit_length() - 1)

    @property
    def folds(self) -> bool:
        return self.core < self.n

    @property
    def parts(self) -> int:
        if self.scheme.partition == "centralized":
            return 1
        return self.core if self.scheme.communication == "hierarchy" else self.n

    @property
    def stages(self) -> list[int]:
        """For each stage of a hierarchy, of how many participants a core participant holds the contributions."""
        first = 2 if self.folds else 1
        return [min(self.n, first << stage) for stage in range(self.core.bit_length() - 1)]

    @property
    def rounds(self) -> int:
        """Rounds of the push and of the pull."""
        if self.n == 1:
            return 0
        phases = 1 if self.scheme.partition == "centralized" else 2
        if self.scheme.communication == "point-to-point":
            return phases
        if self.scheme.communication == "ring":
            return phases * (self.n - 1)
        return phases * len(self.stages) + 2 * self.folds

    @property
    def messages(self) -> int:
        """The count of a COO message and the bits of others are sent ahead of the rest."""
        partners = self.n - 1 if self.scheme.communication == "point-to-point" else 1
        return partners * self.rounds * (1 if self.scheme.push == "dense" else 2)

    def fullest_of_core(self, m: int) -> int:
        """Units of m participants in the fullest of the core's parts, which are larger than n parts."""
        return min(self.union[m], -(-self.fullest[m] * self.n // self.core))

    def coo(self, units: int, payloads: int = 1) -> int:
        """Bytes of `payloads` COO payloads with `units` entries in all."""
        return WORD * payloads + units * (WORD + WORD * self.width)

    @property
    def bytes(self) -> int:
        """Sent or received by the busiest participant, whichever is more, over all rounds."""
        if self.n == 1:
            return 0
        if self.scheme.communication == "hierarchy":
            return self._hierarchy()
        if self.scheme.communication == "ring":
            return self._ring()
        one = self.union[1]
        if self.scheme.partition == "centralized":
            return (self.n - 1) * self.coo(one)
        assert self.scheme.pull is not None
        push = self._payload(self.scheme.push, self.fullest[1], self.blocks.push if self.blocks else 0)
        pull = self._payload(self.scheme.pull, self.fullest[self.n], self.blocks.pull if self.blocks else 0)
        return (self.n - 1) * (push + pull)

    def _payload(self, form: Format, units: int, blocks: int) -> int:
        """Bytes of one part with `units` non-zero units in `blocks` blocks."""
        value = WORD * self.width
        if form == "coo":
            return self.coo(units)
        if form == "dense":
            return value * self.part
        if form == "bitmap":
            return _bits(self.part) + value * units
        assert self.blocks is not None
        size = self.blocks.size
        return _bits(-(-self.part // size)) + value * min(blocks * size, self.part)

    def _hierarchy(self) -> int:
        one_shot = self.scheme.aggregation == "one-shot"
        if self.scheme.partition == "centralized":
            sent = sum(m * self.coo(self.union[1]) if one_shot else self.coo(self.union[m]) for m in self.stages)
            return sent + self.folds * (self.coo(self.union[1]) + self.coo(self.union[self.n]))
        sent, kept = 0, self.core
        for m in self.stages:
            kept //= 2
            # Half of the parts so far go out: one sum each, or one payload of each participant.
            sent += m * self._several(kept, 1) if one_shot else self._several(kept, m)
            sent += self._several(kept, self.n)
        return sent + self.folds * (self._several(self.core, 1) + self._several(self.core, self.n))

    def _several(self, parts: int, m: int) -> int:
        """Bytes of several parts of the sum of m participants, which has no more units than all parts together."""
        fullest = self.fullest_of_core(m) if self.scheme.communication == "hierarchy" else self.fullest[m]
        return self.coo(min(parts * fullest, self.union[m]), parts)

    def _ring(self) -> int:
        """A payload a step: of one participant, or of the sum so far; one-shot parts go out until their owner."""
        steps = self.n - 1
        one_shot = self.scheme.aggregation == "one-shot"
        if self.scheme.partition == "centralized":
            return self.coo(steps * self.union[1] if one_shot else sum(self.union[1 : self.n]), steps)
        if one_shot:
            push = sum(self._several(parts, 1) for parts in range(1, self.n))
        else:
            push = self.coo(sum(self.fullest[1 : self.n]), steps)
        return push + steps * self.coo(self.fullest[self.n])


def exchange_size(problem: SparseProblem, gradient: SparseGradient, scheme: Scheme) -> ExchangeSize:
    """What `scheme` exchanges of a gradient of the problem. Centralized schemes have no parts."""
    n, shard = problem.machines, problem.shard(gradient)
    hashed = scheme.balance == "balanced"
    return ExchangeSize(
        scheme=scheme,
        n=n,
        width=gradient.width,
        shard=shard,
        part=fullest_hashed(shard, n) if hashed else -(-shard // n),
        union=(0, *gradient.unions),
        fullest=(0, *(gradient.hashed if hashed else gradient.even)),
        blocks=gradient.blocks if scheme.push == "blocks" else None,
    )


def _bits(bits: int) -> int:
    """Bytes of whole words."""
    return WORD * -(-bits // WORD_BITS)
