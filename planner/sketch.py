"""The communication sketch: a person's guidance to collective synthesis (TACCL, sections 5.4 and B.1).

Field names follow the source's listing; those after `hyperparameters` extend it (node count, contiguity,
general symmetries). `planner/collective/problem.py` gives them their meaning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta

from planner.scalars import Count, Name, Positive, Rank, Record

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
    internode_conn: dict[LocalRank, tuple[Rank, ...]]
    beta_split: dict[LocalRank, Positive] = {}
    chunk_to_relay_map: tuple[Positive, Count] | None = None


class Hyperparameters(Record, frozen=True, kw_only=True):
    input_chunkup: Positive = 1
    input_size: Name | None = None
    """Per-rank input buffer as people write sizes; `--size` overrides it."""


class Contiguity(Record, frozen=True, kw_only=True):
    """Which link kinds may batch chunks that lie side by side, and how many at most."""

    links: tuple[Name, ...] = ()
    max_run: Positive = 6


class Symmetry(Record, frozen=True, kw_only=True):
    """A rank permutation; transfers are tied where both ends lie in one block of the partition."""

    perm: tuple[Rank, ...]
    partition: tuple[tuple[Rank, ...], ...]


class Sketch(Record, frozen=True, kw_only=True, tag_field="kind", tag="sketch"):
    version: Positive
    name: Name
    intranode_sketch: IntranodeSketch
    internode_sketch: InternodeSketch | None = None
    symmetry_offsets: tuple[tuple[Positive, Positive], ...] = ()
    hyperparameters: Hyperparameters = Hyperparameters()
    num_nodes: Positive | None = None
    ib_ports: Literal["per_nic", "per_device", "none"] = "per_device"
    """Contention of inter-node links: one port for all devices of a NIC, one for each device, or none."""
    contiguity: Contiguity = Contiguity()
    instances: Positive | None = None
    symmetries: tuple[Symmetry, ...] = ()

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
        for index, (offset, group) in enumerate(self.symmetry_offsets):
            if offset >= group:
                yield (
                    f"$.symmetry_offsets[{index}]",
                    f"offset {offset} in groups of {group}",
                    "an offset below the group",
                )
        for index, symmetry in enumerate(self.symmetries):
            if sorted(symmetry.perm) != list(range(len(symmetry.perm))):
                yield f"$.symmetries[{index}].perm", "no permutation", f"each of 0..{len(symmetry.perm) - 1} once"
            flat = sorted(rank for block in symmetry.partition for rank in block)
            if flat != list(range(len(symmetry.perm))):
                yield (
                    f"$.symmetries[{index}].partition",
                    "blocks that do not cover each rank once",
                    "a partition of the ranks",
                )
