"""Costs of the runtimes that execute collective programs, by backend: what a program takes beyond its links."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from treadle.planner.documents.nccl_costs import NcclLibrary
from treadle.planner.documents.scalars import Amount, Positive, PositiveAmount, Record

PIECE_BYTES = 1 << 17
"""What a step of the CPU runtime passes on at once of what it receives."""
Share = Annotated[float, Meta(gt=0, le=1)]


class MessageCost(Record, frozen=True, kw_only=True):
    """What a message costs the two ranks, over memory or over TCP."""

    message_us: Amount
    """CPU time of a message to its sender, and again to its receiver."""
    copy_us_per_MB: Amount
    """CPU time of the copy at each end."""
    sum_us_per_MB: Amount
    """CPU time of the receiver that adds what arrives to what it has, in place of its copy."""
    latency_us: Amount
    """From the first bytes at the receiver until it works on them, beyond the alpha of the link."""


class CpuTransport(Record, frozen=True, kw_only=True):
    """The CPU runtime: a process of one thread for each rank. Ranks of a host exchange through its memory, others over
    TCP. Measured by `treadle profile measure --backend cpu`."""

    call_us: Amount
    """CPU time of a call to each rank before its first step."""
    step_us: Amount
    """CPU time of a step to its rank."""
    copy_us_per_MB: Amount
    """CPU time of a local copy, of what caches hold."""
    sum_us_per_MB: Amount
    """CPU time of a local sum, of what caches hold."""
    memory: MessageCost
    """Between ranks of a host."""
    tcp: MessageCost | None = None
    """Between hosts; as `memory` where it was not measured."""
    cache_bytes: Positive | None = None
    """Bytes of the buffers of all ranks of a host up to which local copies and sums cost no more."""
    uncached: Annotated[float, Meta(ge=1)] = 1.0
    """How many times as long local copies and sums take where no cache holds the buffers."""
    link_efficiency: Share = 1.0
    """Share of the rate of a NIC or uplink that payload reaches."""
    piece_bytes: Positive = PIECE_BYTES
    """What a step passes on at once of what it receives."""
    cores: PositiveAmount
    """Cores that the ranks share."""
    cores_of: Literal["host", "machine"] = "host"
    """Whether each host has these cores, or all hosts together, which a lab makes of one machine."""
    hosts: Literal["nodes", "one"] = "nodes"
    """Whether each node is a host, or all ranks are processes of one host, whatever nodes the profile has."""

    @property
    def between_hosts(self) -> MessageCost:
        return self.memory if self.tcp is None else self.tcp


class GroupedTransport(Record, frozen=True, kw_only=True):
    """Grouped sends and receives of NCCL, between GPUs of several hosts: a rank posts a group of messages, and goes on
    when all of them have met theirs. The bytes of a message are not passed on before it has ended."""

    call_us: Amount
    """From the call to its first work on the device."""
    group_us: Amount
    """From the start of a group until its first bytes leave, beyond the alpha of the link."""
    message_us: Amount = 0.0
    """What each further message of a group adds to that."""
    local_us: Amount
    """Fixed cost of the kernel that makes one wave of copies or sums."""
    local_gbps: PositiveAmount
    """Payload that such a kernel copies or adds up, in GB/s (10^9 bytes per second)."""
    link_efficiency: Share = 1.0
    """Share of a link's or port's rate that payload reaches."""


class SymmetricTransport(Record, frozen=True, kw_only=True):
    """The GPU runtime over symmetric memory: kernels of one host that read the buffers of all ranks, without slots."""

    launch_us: Amount
    """From the end of the kernel before until the first thread works, and from its last store to the end."""
    barrier_us: Amount
    """Until all ranks know that all others have come."""
    access_us: Amount
    """Until a word read from another rank is there, or one written to it has arrived."""
    copy_us_per_MB: Amount
    """Copy of the caller's tensor into the buffer, and out of it."""
    link_efficiency: Share = 1.0
    """Share of the rate of a link or port that reads and writes reach."""


class Transports(Record, frozen=True, kw_only=True):
    """By the name of the backend."""

    cpu: CpuTransport | None = None
    nccl: GroupedTransport | None = None
    nccl_library: NcclLibrary | None = None
    """NCCL's own algorithms, no backend of ours: what plans are compared with."""
    symmetric: SymmetricTransport | None = None
