"""A compression problem: gradients as they become ready, links, and what compressors cost. By hand or from a trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from treadle.planner.documents.compression_costs import CompressorCost, Curve, RoutineCost, problems_of
from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.documents.scalars import Count, Document, Name, Positive, Record
from treadle.planner.errors import InputError
from treadle.planner.machine.compressors import ALGORITHMS, compressor

VERSION = 1
Workers = Annotated[int, Meta(ge=1, le=256)]
DTYPE_BYTES = 4
"""Gradients are float32."""


class Gradient(Record, frozen=True, kw_only=True):
    """The gradient of one parameter; `backward_ns` is the time of the backward pass since the one before was ready."""

    name: Name
    elements: Positive
    backward_ns: Count


class CompressionProblem(Document, frozen=True, kw_only=True, tag_field="kind", tag="compression-problem"):
    """`machines` nodes with `devices` ranks each, all alike; gradients in the order in which they become ready.

    `inter` is the link of a whole node, which its ranks share; `intra` that of one rank to the others of its node.
    """

    version: Positive
    name: Name
    machines: Positive
    devices: Positive
    forward_ns: Count = 0
    """All of an iteration but the backward pass and the exchange."""
    gradients: tuple[Gradient, ...]
    intra: GradientLink | None = None
    inter: GradientLink | None = None
    compressors: tuple[CompressorCost, ...] = ()
    """Candidates, each at the places where it may run."""
    routines: tuple[RoutineCost, ...] = ()
    """Measured collectives; others are priced by their links."""
    issue: Curve | None = None
    """What a collective takes of the device before it is sent, over the bytes that a rank sends; None for nothing."""
    planned: Curve | None = None
    """A planned allreduce of all ranks, over bytes; None where there is no such plan."""
    pack: Curve | None = None
    """Copy of a group of several gradients into one buffer, over elements, on the device before it is compressed with a
    residual, which goes with the order of the gradients. Others are sent from where the framework has them."""
    host_workers: Workers = 1
    """Encodings and decodings that the host runs at once; a group's run on the worker of its number."""
    group_bytes: Positive | None = None
    """The most bytes of gradients in a group of several; None without a limit."""
    compressions: Count | None = None
    """The most encodings that a gradient may go through, to protect accuracy; None without a limit."""

    @property
    def ranks(self) -> int:
        return self.machines * self.devices

    @property
    def hierarchical(self) -> bool:
        """Whether there are ranks both inside and between nodes."""
        return self.machines > 1 and self.devices > 1

    @property
    def backward_ns(self) -> int:
        return sum(gradient.backward_ns for gradient in self.gradients)

    @property
    def places(self) -> tuple[str, ...]:
        """Where compressors may run, the device first."""
        found = {cost.place for cost in self.compressors}
        return tuple(place for place in ("device", "host") if place in found)

    @property
    def names(self) -> tuple[str, ...]:
        """The compressors by name, in the order of the file."""
        return tuple(dict.fromkeys(cost.name for cost in self.compressors))

    def elements(self, first: int, last: int) -> int:
        """Elements of gradients `first` to `last` together."""
        return sum(gradient.elements for gradient in self.gradients[first : last + 1])

    def fits(self, first: int, last: int) -> bool:
        """Whether gradients `first` to `last` may be one group."""
        most = self.group_bytes
        return first == last or most is None or DTYPE_BYTES * self.elements(first, last) <= most

    def problems(self) -> Iterator[tuple[str, str, str]]:
        if not self.gradients:
            yield "$.gradients", "none", "at least one gradient"
        seen: set[str] = set()
        for place, gradient in enumerate(self.gradients):
            if gradient.name in seen:
                yield f"$.gradients[{place}].name", f"second {gradient.name!r}", "names that occur once"
            seen.add(gradient.name)
        if self.devices > 1 and self.intra is None:
            yield "$.intra", "nothing", f"the link of a rank to the {self.devices} ranks of its node"
        if self.machines > 1 and self.inter is None:
            yield "$.inter", "nothing", f"the link between {self.machines} nodes"
        curves = {"pack": self.pack, "issue": self.issue, "planned": self.planned}
        yield from problems_of(self.compressors, self.routines, curves, "$")
        for place, cost in enumerate(self.compressors):
            if cost.wire is None and cost.name.partition(":")[0] not in ALGORITHMS:
                yield f"$.compressors[{place}].wire", f"none for {cost.name!r}", "bytes over elements"
            elif cost.wire is None:
                try:
                    compressor(cost.name)
                except InputError as error:
                    yield f"$.compressors[{place}].name", repr(cost.name), str(error).partition("expected ")[2]
