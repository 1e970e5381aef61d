"""The communication sketch: a person's guidance to collective synthesis (TACCL, sections 5.4 and B.1).

Field names follow TACCL's listing; those after `hyperparameters` extend it (node count, contiguity,
general symmetries). `planner/passes/collective/{topology,symmetry,problem}.py` give them their meaning,
docs/sketches.md explains each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta

from treadle.planner.documents.quantities import parse_bytes
from treadle.planner.documents.scalars import Count, Document, Instances, Name, Positive, PositiveAmount, Rank, Record
from treadle.planner.errors import InputError

VERSION = 1

Policy = Literal["uc-min", "uc-max", "free", "auto"]
LocalRank = Annotated[str, Meta(pattern=r"^[0-9]{1,9}$")]


class IntranodeSketch(Record, frozen=True, kw_only=True):
    """`switch`: links come from the switch groups; `direct`: the physical links, or only those in `direct_links`."""

    strategy: Literal["switch", "direct"]
    switches: tuple[tuple[Rank, ...], ...] = ()
    switch_hyperedge_strategy: tuple[Policy, ...] = ()
    direct_links: tuple[tuple[Rank, Rank], ...] | None = None


class InternodeSketch(Record, frozen=True, kw_only=True):
    """Who may send across nodes: local device -> local devices of any other node."""

    strategy: Literal["relay"]
    internode_conn: dict[LocalRank, tuple[Rank, ...]] | Literal["direct-map", "fully-connected"]
    """A map, or in words: each device to its like in other nodes, or each to all."""
    beta_split: dict[LocalRank, Positive] = {}
    chunk_to_relay_map: tuple[Positive, Count] | None = None
    """[r1, r2]: chunks of local device d leave their node only through (d // r1) * r1 + r2."""
    gpus_to_sender_rev_map: dict[LocalRank, tuple[Rank, ...]] = {}
    """The same without a formula: sender -> devices whose chunks leave through it. A device may have several senders;
    one that is not named may use any."""

    def connections(self, per_node: int) -> dict[int, tuple[int, ...]]:
        """`internode_conn` as a map of local devices, for nodes of `per_node`."""
        if self.internode_conn == "direct-map":
            return {device: (device,) for device in range(per_node)}
        if self.internode_conn == "fully-connected":
            return {device: tuple(range(per_node)) for device in range(per_node)}
        assert isinstance(self.internode_conn, dict)
        return {int(device): receivers for device, receivers in sorted(self.internode_conn.items(), key=_by_number)}


def _is_size(text: str) -> bool:
    try:
        return parse_bytes(text) > 0
    except InputError:
        return False


def _by_number(entry: tuple[str, tuple[int, ...]]) -> int:
    return int(entry[0])


class Hyperparameters(Record, frozen=True, kw_only=True):
    input_chunkup: Positive = 1
    input_size: Name | tuple[Name, ...] | None = None
    """Per-rank input buffer as a size, or several of them; `--size` overrides it."""


class Contiguity(Record, frozen=True, kw_only=True):
    """Which link kinds may batch chunks that lie side by side, and how many at most."""

    links: tuple[Name, ...] = ()
    max_run: Positive = 6
    require_memory_contiguous: bool = True
    """Whether the chunks of one message must lie side by side in memory at both ends."""


class Symmetry(Record, frozen=True, kw_only=True):
    """A permutation of all ranks, or of one node's devices and then the same in every node.

    Transfers are tied where both ends lie in one block of the partition; without one, all of them are.
    """

    perm: tuple[Rank, ...]
    partition: tuple[tuple[Rank, ...], ...] = ()


class Order(Record, frozen=True, kw_only=True):
    """Which list-scheduling heuristics are tried; the best result is kept."""

    modes: tuple[Literal["earliest", "remaining"], ...] = ("earliest", "remaining")
    directions: tuple[Literal["forward", "backward"], ...] = ("forward", "backward")


class TimeLimits(Record, frozen=True, kw_only=True):
    """Seconds of deterministic solver work on one core, so that the same plan comes out on every machine."""

    routing: PositiveAmount | None = None
    scheduling: PositiveAmount | None = None


class Sketch(Document, frozen=True, kw_only=True, tag_field="kind", tag="sketch"):
    version: Positive
    name: Name
    intranode_sketch: IntranodeSketch
    internode_sketch: InternodeSketch | None = None
    symmetry_offsets: tuple[tuple[Positive, ...], ...] = ()
    """[o, g]: rotation by o inside consecutive groups of g ranks, ties inside each group; [o, g, b]: the same rotation,
    ties inside each b consecutive ranks."""
    hyperparameters: Hyperparameters = Hyperparameters()
    num_nodes: Positive | None = None
    ib_ports: Literal["per_nic", "per_device", "none"] = "per_device"
    """Contention of inter-node links: one port for all devices of a NIC, one for each device, or none."""
    contiguity: Contiguity = Contiguity()
    instances: Instances | None = None
    symmetries: tuple[Symmetry, ...] = ()
    order: Order = Order()
    time_limit_s: TimeLimits = TimeLimits()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of every `input_size`. Raises InputError for a text that is no size."""
        given = self.hyperparameters.input_size
        texts = (given,) if isinstance(given, str) else given or ()
        return tuple(parse_bytes(t, where=f"sketch {self.name}: $.hyperparameters.input_size") for t in texts)

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield (path, found, expected) for what can be seen wrong without the hardware."""
        intra = self.intranode_sketch
        if intra.strategy == "switch" and not intra.switches:
            yield "$.intranode_sketch.switches", "nothing", "at least one group of devices"
        if len(intra.switch_hyperedge_strategy) not in (0, 1, len(intra.switches)):
            yield (
                "$.intranode_sketch.switch_hyperedge_strategy",
                f"{len(intra.switch_hyperedge_strategy)} policies",
                f"one for all switches or one for each of {len(intra.switches)}",
            )
        given = self.hyperparameters.input_size
        for text in (given,) if isinstance(given, str) else given or ():
            if not _is_size(text):
                yield "$.hyperparameters.input_size", repr(text), "a size of at least 1 byte, such as 64K or 1MiB"
        inter = self.internode_sketch
        if inter is not None and inter.chunk_to_relay_map is not None and inter.gpus_to_sender_rev_map:
            yield "$.internode_sketch.chunk_to_relay_map", "also gpus_to_sender_rev_map", "one of the two"
        for field in ("modes", "directions"):
            if not getattr(self.order, field):
                yield f"$.order.{field}", "nothing", "at least one"
        for index, numbers in enumerate(self.symmetry_offsets):
            path = f"$.symmetry_offsets[{index}]"
            if len(numbers) not in (2, 3):
                yield path, f"{len(numbers)} numbers", "an offset, a group and perhaps a block"
                continue
            offset, group, *block = numbers
            if offset >= group:
                yield path, f"offset {offset} in groups of {group}", "an offset below the group"
            if block and block[0] % group:
                yield path, f"blocks of {block[0]} for groups of {group}", "a multiple of the group"
        for index, symmetry in enumerate(self.symmetries):
            size = len(symmetry.perm)
            if sorted(symmetry.perm) != list(range(size)):
                yield f"$.symmetries[{index}].perm", "no permutation", f"each of 0..{size - 1} once"
            flat = sorted(rank for block in symmetry.partition for rank in block)
            if symmetry.partition and flat != list(range(size)):
                yield (
                    f"$.symmetries[{index}].partition",
                    "blocks that do not cover each rank once",
                    "a partition of the ranks",
                )
