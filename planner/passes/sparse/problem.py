"""A problem of sparse gradients: how many units of each are not zero in sums over participants, links, and work.

Participants are nodes. The devices of a node first add up their dense gradients, of which each then holds a part, a
shard; participants exchange shards of the same place.
"""

from __future__ import annotations

from collections.abc import Iterator

from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.documents.scalars import Count, Document, Name, Positive, Record
from treadle.planner.documents.sparse_costs import SparseWork
from treadle.planner.documents.sparsity import Form, Unit, problems_of_units

VERSION = 1
VALUE_BYTES = INDEX_BYTES = 4
"""Values are float32, indices 32 bits."""
COUNT_BYTES = 4
"""A COO message is preceded by the number of its entries."""
MAX_MACHINES = 1024


class BlockCounts(Record, frozen=True, kw_only=True):
    """Non-zero blocks of `size` units in the fullest even range: of one participant, and of the sum of all."""

    size: Positive
    push: Count
    pull: Count


class SparseGradient(Record, frozen=True, kw_only=True):
    """One gradient. Its counts are those of one shard, in the mean over the shards of a node, which share its link:
    `units` divided by the devices of a node, rounded up.

    `unions[m - 1]` are the non-zero units in the sum of m participants; `even[m - 1]` and `hashed[m - 1]` those in the
    fullest of as many even ranges, and of as many hashed parts, as there are participants.
    """

    name: Name
    form: Form
    unit: Unit
    units: Positive
    """In the whole gradient."""
    width: Positive
    """Elements in a unit."""
    occurrences: Count
    """Entries that the framework hands over, before those of one index are added up."""
    unions: tuple[Count, ...]
    even: tuple[Count, ...]
    hashed: tuple[Count, ...]
    densest: Count
    """The most non-zero units of one participant in its fullest shard, for which hash memory is made."""
    blocks: BlockCounts | None = None
    extrapolated: bool = False
    """More participants than were recorded."""


class SparseProblem(Document, frozen=True, kw_only=True, tag_field="kind", tag="sparse-problem"):
    """`machines` participants with `devices` ranks each, all alike. Gradients are exchanged together: what one
    sends to another at a time is one message, of whose alpha each gradient has an equal share.

    `inter` is the link of a whole node, which its ranks share; `intra` that of one rank to the others of its node.
    """

    version: Positive
    name: Name
    machines: Positive
    devices: Positive
    gradients: tuple[SparseGradient, ...]
    intra: GradientLink | None = None
    inter: GradientLink | None = None
    work: SparseWork = SparseWork()

    @property
    def ranks(self) -> int:
        return self.machines * self.devices

    def shard(self, gradient: SparseGradient) -> int:
        """Units of the largest shard."""
        return -(-gradient.units // self.devices)

    def problems(self) -> Iterator[tuple[str, str, str]]:
        if not self.gradients:
            yield "$.gradients", "none", "at least one gradient"
        if self.machines > MAX_MACHINES:
            yield "$.machines", str(self.machines), f"at most {MAX_MACHINES}"
            return
        if self.devices > 1 and self.intra is None:
            yield "$.intra", "nothing", f"the link of a rank to the {self.devices} ranks of its node"
        if self.machines > 1 and self.inter is None:
            yield "$.inter", "nothing", f"the link between {self.machines} nodes"
        seen: set[str] = set()
        for place, gradient in enumerate(self.gradients):
            path = f"$.gradients[{place}]"
            if gradient.name in seen:
                yield f"{path}.name", f"second {gradient.name!r}", "names that occur once"
            seen.add(gradient.name)
            yield from self._problems_of(gradient, path)

    def _problems_of(self, gradient: SparseGradient, path: str) -> Iterator[tuple[str, str, str]]:
        n, shard = self.machines, self.shard(gradient)
        yield from problems_of_units(gradient.unit, gradient.units, gradient.width, path)
        counts = {"unions": gradient.unions, "even": gradient.even, "hashed": gradient.hashed}
        for name, found in counts.items():
            if len(found) != n:
                yield f"{path}.{name}", f"{len(found)} counts", f"one for each of 1 to {n} participants"
        if any(len(found) != n for found in counts.values()):
            return
        for m, union in enumerate(gradient.unions, 1):
            before = gradient.unions[m - 2] if m > 1 else 0
            if not before <= union <= min(shard, m * gradient.unions[0]):
                expected = f"{before} to {min(shard, m * gradient.unions[0])}"
                yield f"{path}.unions[{m - 1}]", str(union), expected
        for name in ("even", "hashed"):
            for m, (fullest, union) in enumerate(zip(counts[name], gradient.unions, strict=True), 1):
                if not -(-union // n) <= fullest <= union:
                    expected = f"{-(-union // n)} to {union}, the fullest of {n} parts of {union} units"
                    yield f"{path}.{name}[{m - 1}]", str(fullest), expected
        if not gradient.unions[0] <= gradient.densest <= shard:
            yield f"{path}.densest", str(gradient.densest), f"{gradient.unions[0]} to {shard}"
        if gradient.occurrences < gradient.unions[0]:
            yield f"{path}.occurrences", str(gradient.occurrences), f"at least {gradient.unions[0]}"
        if gradient.blocks is not None:
            most = -(-shard // n) // gradient.blocks.size + 2
            for name in ("push", "pull"):
                if (found := getattr(gradient.blocks, name)) > most:
                    yield f"{path}.blocks.{name}", str(found), f"at most {most} blocks of a range"
