"""An abstract collective algorithm: chunks moving over links at given times (TACCL, section 5).

Times are integer nanoseconds. Every method returns this object; lowering, checking and drawing start from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta, Struct

from treadle.planner.documents.collective import Collective, Demand, Protocol, max_chunkup
from treadle.planner.documents.hardware import MAX_RANKS, InNetwork
from treadle.planner.documents.scalars import Count, Decisions, Name, Positive, Rank, Record

Latency = Literal["serial", "pipelined"]
"""Whether a link is busy for alpha + beta, or for beta only, so that the next message leaves while this one is in
flight (TE-CCL's model)."""


class LinkCost(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A directed logical link; `beta_ns` is the cost of one chunk."""

    src: Rank
    dst: Rank
    kind: Name
    alpha_ns: Count
    beta_ns: Count


class Port(Record, frozen=True, kw_only=True):
    """Links that take turns: the out- or in-port of a rank on a switch, a NIC, or one direction of an uplink."""

    name: Name
    links: tuple[tuple[Rank, Rank], ...]
    beta_ns: Count | None = None
    """How long one chunk holds the port, from its send on, where that is not as long as it holds its link: an uplink
    is faster than the links through it, and alpha does not occupy it."""


class Transfer(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`chunk` leaves `src` at `send_ns` and is usable at `dst` from `arrive_ns`.

    Transfers of one link with the same `batch` number (0 or more) travel as one message. With `reduce` the receiver
    adds it to what it holds.
    """

    chunk: Count
    src: Rank
    dst: Rank
    send_ns: Count
    arrive_ns: Count
    batch: Count
    reduce: bool = False


class SwitchCost(Record, frozen=True, kw_only=True):
    """A switch that adds up what its members hold, or gives what one writes to all of them."""

    name: Name
    members: tuple[Rank, ...]
    in_network: tuple[InNetwork, ...]
    alpha_ns: Count
    beta_ns: Count
    """How long one chunk holds a member's port at full rate, in one direction."""


class SwitchStep(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`rank` reads the sum of `chunk` over all members through `switch` ("reduce"), or writes it to all members
    ("multicast").

    A reduction passes the out-ports of all members, that of `rank` too, and the in-port of `rank`; a multicast the
    out-port of `rank` and all in-ports. In each it takes the same share of the rate from `start_ns` to alpha before
    `end_ns`.
    """

    chunk: Count
    rank: Rank
    op: InNetwork
    switch: Name
    start_ns: Count
    end_ns: Count


class CollectiveDecisions(Decisions, frozen=True, kw_only=True, tag_field="pass", tag="collective"):
    """Chunk numbering is that of the collective: (owner or destination) * chunkup + piece,
    (owner * ranks + destination) * chunkup + piece for alltoall, demand * chunkup + piece where `demands` are given.
    `collectives.form` says where each chunk is before and after."""

    collective: Collective
    ranks: Annotated[int, Meta(ge=1, le=MAX_RANKS)]
    chunkup: Positive
    chunk_bytes: Positive
    input_bytes: Positive
    """Per-rank input buffer."""
    root: Rank | None = None
    roots: tuple[Rank, ...] | None = None
    """Allreduce only: the rank at which each chunk is summed up. None: ranks * chunkup chunks, chunk // chunkup."""
    demands: tuple[Demand, ...] | None = None
    """Demands of alltoallv, sendrecv and custom."""
    latency: Latency = "serial"
    links: tuple[LinkCost, ...]
    ports: tuple[Port, ...] = ()
    transfers: tuple[Transfer, ...]
    switches: tuple[SwitchCost, ...] = ()
    """Those of `switched`."""
    switched: tuple[SwitchStep, ...] = ()
    """In place of transfers: what switches do."""
    makespan_ns: Count
    routing_ns: Count | None = None
    """T1: the optimum of the relaxed routing, of one half for an allreduce."""
    ordering_ns: Count | None = None
    """T2: the makespan of the greedy ordering."""
    instances: Positive = 1
    protocol: Protocol = "Simple"
    ordered: bool = False
    """Whether the program makes the messages of a rank through one port, in one instance, wait for each other in the
    order of the schedule; else they leave as their threadblocks come to them."""
    fused: bool = True
    """Whether a threadblock of the program sends on in one step what it receives; else one threadblock receives and
    another sends, so that twice as many share the work."""

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield (path, found, expected) for every number out of range."""
        most = max_chunkup(self.collective, self.ranks)
        if self.chunkup > most:
            yield (
                "$.decisions.chunkup",
                str(self.chunkup),
                f"at most {most} for {self.collective} of {self.ranks} ranks",
            )
        for index, link in enumerate(self.links):
            if max(link.src, link.dst) >= self.ranks or link.src == link.dst:
                yield (
                    f"$.decisions.links[{index}]",
                    f"{link.src} -> {link.dst}",
                    f"two different ranks below {self.ranks}",
                )
        for index, move in enumerate(self.transfers):
            if max(move.src, move.dst) >= self.ranks or move.src == move.dst:
                yield (
                    f"$.decisions.transfers[{index}]",
                    f"{move.src} -> {move.dst}",
                    f"two different ranks below {self.ranks}",
                )
            if move.arrive_ns < move.send_ns:
                yield f"$.decisions.transfers[{index}]", "an arrival before its send", "times in order"
        for index, switch in enumerate(self.switches):
            members = {*switch.members}
            if len(members) < max(2, len(switch.members)) or max(members) >= self.ranks:
                yield (
                    f"$.decisions.switches[{index}].members",
                    ", ".join(map(str, switch.members)) or "none",
                    f"two or more different ranks below {self.ranks}",
                )
        for index, step in enumerate(self.switched):
            if step.rank >= self.ranks:
                yield f"$.decisions.switched[{index}]", f"rank {step.rank}", f"a rank below {self.ranks}"
            if step.end_ns < step.start_ns:
                yield f"$.decisions.switched[{index}]", "an end before its start", "times in order"
