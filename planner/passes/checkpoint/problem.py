"""A problem of checkpoints in memory: machines, what they hold, when their links are idle, and how often they fail.

Machines count from 0, times are ns, rates whole bytes per second, so that all arithmetic but that of probabilities is
exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Literal

from msgspec import Meta

from treadle.planner.documents.scalars import Amount, Count, Document, Name, Positive, Record

VERSION = 1
MOST_MACHINES = 4096
BUFFER_BYTES = 128 << 20
MOST_BYTES = 2**62
Share = Annotated[int, Meta(ge=1, le=1_000_000)]
"""Parts in a million."""
Variant = Literal["blocking", "naive", "no-pipeline", "planned"]
"""All traffic when an iteration begins; one piece for each span; pieces, one after the other; pieces in turns of
buffers."""


class IdleSpan(Record, frozen=True, kw_only=True):
    """What the links of sender and receiver leave idle between two messages of the training, in the mean over
    iterations and the least of all machines. `after` and `before` name the messages; the last span ends with the update
    of the weights."""

    after: Name
    before: Name
    length_ns: Count
    spread_ns: Count = 0
    """Standard deviation over iterations."""


class TrainingMessage(Record, frozen=True, kw_only=True):
    """A message of the training; own copies to the host are made while it runs. Times from the begin of the
    iteration."""

    name: Name
    start_ns: Count
    end_ns: Count


class Persistent(Record, frozen=True, kw_only=True):
    """Storage that all machines share, and what users keep there."""

    rate: Positive
    """Bytes per second of all machines together."""
    interval_ns: Positive
    serialize_rate: Positive | None = None
    """Bytes per second of one machine that writes its state as a file."""


class Recovery(Record, frozen=True, kw_only=True):
    """Times that are no one's choice."""

    detect_ns: Count = 15_000_000_000
    replace_ns: Count = 330_000_000_000
    """A machine that takes the place of a lost one; 0 with one that stands by."""
    restart_ns: Count = 240_000_000_000
    """From loaded states to the first iteration."""
    standby: Count = 0


class CheckpointProblem(Document, frozen=True, kw_only=True, tag_field="kind", tag="checkpoint-problem"):
    """`machines` train together; each has `devices`, each of which holds `state_bytes` of weights and states."""

    version: Positive
    name: Name
    machines: Positive
    copies: Positive
    """How many hold the state of each machine, itself among them."""
    devices: Positive
    state_bytes: Positive
    domains: tuple[Count, ...] = ()
    """The failure domain of each machine (a rack, a power supply); none: each machine fails alone."""
    iteration_ns: Positive
    messages: tuple[TrainingMessage, ...] = ()
    spans: tuple[IdleSpan, ...]
    fill_ppm: Share = 900_000
    """How much of a span may be filled, since spans vary."""
    alpha_ns: Count
    link_rate: Positive
    """From one device to another machine."""
    copy_rate: Positive | None = None
    """From a device to its host; None where states are in host memory."""
    buffer_bytes: Positive = BUFFER_BYTES
    """Memory of a device for checkpoints that arrive."""
    buffers: Positive = 4
    host_bytes: Positive | None = None
    """Memory of a machine that checkpoints may take."""
    failures_per_day: Amount = 0.0
    """The whole job counts."""
    hardware_ppm: Annotated[int, Meta(ge=0, le=1_000_000)] = 500_000
    """Share of the failures in which a machine is lost."""
    domain_ppm: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """Share of the hardware failures that take a whole failure domain."""
    persistent: Persistent | None = None
    recovery: Recovery = Recovery()

    @property
    def piece_bytes(self) -> int:
        """The most that one piece has: what a buffer holds."""
        return self.buffer_bytes // self.buffers

    def problems(self) -> Iterator[tuple[str, str, str]]:
        if self.version > VERSION:
            yield "$.version", str(self.version), f"at most {VERSION}; a newer treadle wrote it"
        if self.machines > MOST_MACHINES:
            yield "$.machines", str(self.machines), f"at most {MOST_MACHINES}"
        if self.copies > self.machines:
            yield "$.copies", str(self.copies), f"at most {self.machines}, one on each machine"
        if 2 * self.copies * self.devices * self.state_bytes > MOST_BYTES:
            yield "$.state_bytes", str(self.state_bytes), f"less, for at most {MOST_BYTES} bytes of a host"
        if self.domains and len(self.domains) != self.machines:
            yield "$.domains", f"{len(self.domains)} domains", f"one for each of {self.machines} machines"
        if not self.spans:
            yield "$.spans", "none", "at least the span before the update of the weights"
        if self.buffer_bytes < self.buffers:
            yield "$.buffer_bytes", str(self.buffer_bytes), f"at least {self.buffers}"
        for place, message in enumerate(self.messages):
            if not message.start_ns <= message.end_ns <= self.iteration_ns:
                yield f"$.messages[{place}]", f"{message.start_ns} to {message.end_ns}", "times within the iteration"
        for place, (before, message) in enumerate(pairwise(self.messages), 1):
            if message.start_ns < before.end_ns:
                yield f"$.messages[{place}].start_ns", str(message.start_ns), f"at least {before.end_ns}, one by one"
        if sum(span.length_ns for span in self.spans) > self.iteration_ns:
            yield "$.spans", "more than the iteration", f"at most {self.iteration_ns} ns in all"
