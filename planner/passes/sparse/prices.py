"""What every scheme takes for a gradient: its link, and work before and after it.

Rates are exact rationals: stages are added up without rounding, and times are rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.passes.sparse.counts import GradientCounts
from treadle.planner.passes.sparse.decisions import HashSlots, SchemeCost
from treadle.planner.passes.sparse.problem import VALUE_BYTES, SparseGradient, SparseProblem
from treadle.planner.passes.sparse.schemes import SCHEMES, Scheme
from treadle.planner.passes.sparse.volumes import Volume, volume

MB = 2**20
SLOTS_PER_INDEX, SERIAL_SHARE = 2, 10
"""Slots for twice the indices, and a tenth of that for those that find none (Zen, section 5.1)."""


class DeviceStage(NamedTuple):
    """A stage of an exchange on the device, in ns."""

    name: str
    ns: Fraction


class SchemePrice(NamedTuple):
    """One scheme for one gradient. `before` the link and `after` it are stages on the device."""

    scheme: Scheme
    volume: Volume
    link_ns: int
    before: tuple[DeviceStage, ...]
    after: tuple[DeviceStage, ...]

    @property
    def time_ns(self) -> int:
        return rounded(sum((stage.ns for stage in (*self.before, *self.after)), Fraction())) + self.link_ns

    @property
    def cost(self) -> SchemeCost:
        return SchemeCost(scheme=self.scheme.name, time_ns=self.time_ns, link_ns=self.link_ns, bytes=self.volume.bytes)


def rounded(ns: Fraction) -> int:
    """To whole ns, halves up."""
    return (2 * ns.numerator + ns.denominator) // (2 * ns.denominator)


def slots_of(scheme: Scheme, counts: GradientCounts) -> HashSlots | None:
    """The hash memory of each part; None without hashed parts."""
    if scheme.balance != "balanced":
        return None
    slots = max(1, -(-SLOTS_PER_INDEX * counts.gradient.densest // counts.parts(scheme)))
    return HashSlots(slots=slots, serial=max(1, -(-slots // SERIAL_SHARE)))


class SchemePrices:
    """The prices of a problem's gradients."""

    def __init__(self, problem: SparseProblem) -> None:
        self.problem = problem
        self._rates = {name: Fraction(getattr(problem.work, name)) for name in problem.work.__struct_fields__}

    def of(self, gradient: SparseGradient) -> Iterator[SchemePrice]:
        """Those of all schemes for one gradient, in the order of the list; without counts of blocks none of those that
        send them."""
        counts = GradientCounts(self.problem, gradient)
        for scheme in SCHEMES:
            if scheme.push != "blocks" or gradient.blocks is not None:
                yield self.price(scheme, counts)

    def price(self, scheme: Scheme, counts: GradientCounts) -> SchemePrice:
        moved = volume(scheme, counts)
        return SchemePrice(
            scheme,
            moved,
            self.link_ns(moved.messages, moved.bytes),
            tuple(stage for stage in self._before(scheme, counts) if stage.ns),
            tuple(stage for stage in self._after(scheme, counts, moved) if stage.ns),
        )

    def link_ns(self, messages: int, moved: int) -> int:
        """What the links between nodes take for messages of a participant one after the other. All devices of a node
        share its link."""
        link = self.problem.inter
        if self.problem.machines == 1 or link is None:
            return 0
        return rounded(_over(link, messages, self.problem.devices * moved))

    def inside(self, counts: GradientCounts) -> Fraction:
        """A reduce-scatter, or an allgather, of the dense gradient between the devices of a node."""
        devices, link = self.problem.devices, self.problem.intra
        if devices == 1 or link is None:
            return Fraction()
        size = VALUE_BYTES * counts.width * counts.gradient.units
        return _over(link, devices - 1, Fraction(devices - 1, devices) * size)

    def write(self, scheme: Scheme | None, counts: GradientCounts) -> Fraction:
        """Write the sum into the gradient: all of a dense one, or what is not zero of a sparse one."""
        dense = _is_dense(counts) or (scheme is not None and scheme.push == "dense")
        return self._work("write_per_value", counts.shard if dense else counts.union(counts.machines), counts)

    def call(self, rounds: int) -> Fraction:
        return self._rates["call"] * (rounds if self.problem.machines > 1 else 0)

    def _before(self, scheme: Scheme, counts: GradientCounts) -> Iterator[DeviceStage]:
        yield DeviceStage("reduce-scatter", self.inside(counts))
        if self.problem.ranks == 1:
            return
        gradient = counts.gradient
        if scheme.push == "dense":
            if gradient.form == "coo":
                yield DeviceStage("make dense", self._work("write_per_value", counts.shard, counts))
            return
        if _is_dense(counts):
            yield DeviceStage("scan", self._work("scan_per_value", counts.shard, counts))
        else:
            yield DeviceStage("coalesce", self._work("coalesce_per_value", gradient.occurrences, counts))
        memory = slots_of(scheme, counts)
        if memory is not None:
            words = (memory.slots + memory.serial) * counts.parts(scheme)
            hashed = self._rates["hash_per_index"] * counts.union(1) + self._rates["extract_per_word"] * words
            yield DeviceStage("hash", hashed)
        gathered = counts.union(1)
        if scheme.push == "blocks" and gradient.blocks is not None:
            gathered = min(gradient.blocks.push * gradient.blocks.size * counts.machines, counts.shard)
        yield DeviceStage("gather", self._work("gather_per_value", gathered, counts))

    def _after(self, scheme: Scheme, counts: GradientCounts, moved: Volume) -> Iterator[DeviceStage]:
        if self.problem.ranks > 1:
            yield DeviceStage("add", self._work("add_per_value", moved.added, counts))
            if scheme.pull == "bitmap":
                covered = counts.covered(scheme) + counts.shard
                yield DeviceStage("bitmap", self._rates["bitmap_per_unit"] * covered)
            yield DeviceStage("write", self.write(scheme, counts))
            yield DeviceStage("calls", self.call(moved.rounds))
        yield DeviceStage("allgather", self.inside(counts))

    def _work(self, rate: str, units: int, counts: GradientCounts) -> Fraction:
        return self._rates[rate] * (units * counts.width)


def _is_dense(counts: GradientCounts) -> bool:
    """Whether a participant holds its gradient as a dense tensor: as handed over, or as the devices of a node summed
    it."""
    return counts.gradient.form == "dense" or counts.devices > 1


def _over(link: GradientLink, messages: int, moved: Fraction | int) -> Fraction:
    return 1000 * (Fraction(link.alpha_us) * messages + Fraction(link.beta_us_per_MB) * moved / MB)
