"""What every scheme takes for a gradient: its link, and work before and after it.

Times are counted in ticks, a fraction of a ns that divides every rate: sums are exact, and each time is rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import lcm
from typing import NamedTuple

from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.passes.sparse.counts import GradientCounts
from treadle.planner.passes.sparse.decisions import HashSlots, SchemeCost
from treadle.planner.passes.sparse.problem import VALUE_BYTES, SparseGradient, SparseProblem
from treadle.planner.passes.sparse.schemes import SCHEMES, Scheme
from treadle.planner.passes.sparse.volumes import Volume, volume

MB = 2**20
SLOTS_PER_INDEX, SERIAL_SHARE = 2, 10
"""Slots for twice the indices, and a tenth of that for those that find none, as Zen has it."""


class DeviceStage(NamedTuple):
    """A stage of an exchange on the device."""

    name: str
    ticks: int


class SchemePrice(NamedTuple):
    """One scheme for one gradient. `before` the link and `after` it are stages on the device, which take `work_ns`."""

    scheme: Scheme
    volume: Volume
    before: tuple[DeviceStage, ...]
    after: tuple[DeviceStage, ...]
    link_ns: int
    work_ns: int

    @property
    def time_ns(self) -> int:
        return self.work_ns + self.link_ns

    @property
    def cost(self) -> SchemeCost:
        return SchemeCost(scheme=self.scheme.name, time_ns=self.time_ns, link_ns=self.link_ns, bytes=self.volume.bytes)


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
        rates = _rates(problem)
        self.unit = lcm(*(rate.denominator for rate in rates.values()))
        """Ticks in a ns."""
        self._rates = {name: rate.numerator * (self.unit // rate.denominator) for name, rate in rates.items()}

    def of(self, gradient: SparseGradient) -> Iterator[SchemePrice]:
        """Those of all schemes for one gradient, in the order of the list; without counts of blocks none of those that
        send them."""
        counts = GradientCounts(self.problem, gradient)
        for scheme in SCHEMES:
            if scheme.push != "blocks" or gradient.blocks is not None:
                yield self.price(scheme, counts)

    def price(self, scheme: Scheme, counts: GradientCounts) -> SchemePrice:
        """What the gradient of `counts` takes by `scheme`."""
        moved = volume(scheme, counts)
        before = tuple(stage for stage in self._before(scheme, counts) if stage.ticks)
        after = tuple(stage for stage in self._after(scheme, counts, moved) if stage.ticks)
        work = sum(ticks for _, ticks in before) + sum(ticks for _, ticks in after)
        return SchemePrice(scheme, moved, before, after, self.link_ns(moved.messages, moved.bytes), self.rounded(work))

    def rounded(self, ticks: int) -> int:
        """To whole ns, halves up."""
        return (2 * ticks + self.unit) // (2 * self.unit)

    def link_ns(self, messages: int, moved: int) -> int:
        """What the links between nodes take for messages of a participant one after the other. All devices of a node
        share its link."""
        return self.rounded(self._rates["message"] * messages + self._rates["byte"] * moved)

    def inside(self, counts: GradientCounts) -> tuple[int, int]:
        """Ticks of the reduce-scatter and of the allgather between the devices of a node: of all values of a dense
        gradient, or of entries after their number."""
        messages, message, byte = counts.devices - 1, self._rates["message inside"], self._rates["byte inside"]
        if counts.dense:
            moved = messages * (message + byte * VALUE_BYTES * counts.width * counts.shard)
            return moved, moved
        before, after = (messages * (2 * message + byte * counts.coo(units)) for units in counts.within)
        return before, after

    def write(self, counts: GradientCounts) -> int:
        """Ticks to write the sum into the gradient as it lies: all of a dense one, or what is not zero of a sparse
        one."""
        return self._per_value("write_per_value", counts.written, counts)

    def call(self, rounds: int) -> int:
        """Ticks to begin rounds."""
        return self._rates["call"] * (rounds if self.problem.machines > 1 else 0)

    def _before(self, scheme: Scheme, counts: GradientCounts) -> Iterator[DeviceStage]:
        if self.problem.ranks == 1:
            return
        gradient = counts.gradient
        if not counts.dense:
            yield DeviceStage("coalesce", self._entries("coalesce", gradient.occurrences, counts))
        yield DeviceStage("reduce-scatter", self.inside(counts)[0])
        if scheme.push == "dense":
            if not counts.dense:
                entries = self._rates["write_per_entry"] * counts.union(1)
                made = self._per_value("write_per_value", counts.shard, counts)
                yield DeviceStage("make dense", entries + made)
            return
        if counts.dense:
            yield DeviceStage("scan", self._per_value("scan_per_value", counts.shard, counts))
        memory = slots_of(scheme, counts)
        if memory is not None:
            words = (memory.slots + memory.serial) * counts.parts(scheme)
            hashed = self._rates["hash_per_index"] * counts.union(1) + self._rates["extract_per_word"] * words
            yield DeviceStage("hash", hashed)
        gathered = counts.union(1)
        if scheme.push == "blocks" and gradient.blocks is not None:
            gathered = min(gradient.blocks.push * gradient.blocks.size * counts.machines, counts.shard)
        yield DeviceStage("gather", self._entries("gather", gathered, counts))

    def _after(self, scheme: Scheme, counts: GradientCounts, moved: Volume) -> Iterator[DeviceStage]:
        if self.problem.ranks > 1:
            # Dense values are added as they lie.
            dense = scheme.push == "dense"
            added = self._per_value("add_per_value", moved.added, counts)
            yield DeviceStage("add", added if dense else self._entries("add", moved.added, counts))
            if scheme.pull == "bitmap":
                # Written by the owner of a part, and read by all of all parts.
                covered = counts.covered(scheme) + counts.shard
                yield DeviceStage("bitmap", self._rates["bitmap_per_unit"] * covered)
            if dense and not counts.dense:
                yield DeviceStage("scan", self._per_value("scan_per_value", counts.shard, counts))
            yield DeviceStage("calls", self.call(moved.rounds))
            yield DeviceStage("allgather", self.inside(counts)[1])
            placed = 0 if dense and counts.dense else self._rates["write_per_entry"] * counts.summed
            yield DeviceStage("write", self.write(counts) + placed)

    def _entries(self, work: str, entries: int, counts: GradientCounts) -> int:
        """Ticks of work on entries, each with its values."""
        return self._rates[f"{work}_per_entry"] * entries + self._per_value(f"{work}_per_value", entries, counts)

    def _per_value(self, rate: str, units: int, counts: GradientCounts) -> int:
        return self._rates[rate] * (units * counts.width)


def _rates(problem: SparseProblem) -> dict[str, Fraction]:
    """ns for each item: those of the work by their names, those of links for a byte of a participant, and for a message
    the share that one gradient has of it."""
    devices, link = problem.devices, GradientLink(beta_us_per_MB=0)
    inter = problem.inter if problem.inter is not None and problem.machines > 1 else link
    intra = problem.intra if problem.intra is not None and devices > 1 else link
    return {
        **{name: Fraction(getattr(problem.work, name)) for name in problem.work.__struct_fields__},
        "message": 1000 * Fraction(inter.alpha_us) / len(problem.gradients),
        "byte": 1000 * devices * Fraction(inter.beta_us_per_MB) / MB,
        "message inside": 1000 * Fraction(intra.alpha_us),
        "byte inside": 1000 * Fraction(intra.beta_us_per_MB) / MB,
    }
