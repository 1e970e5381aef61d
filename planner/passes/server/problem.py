"""A problem of serving parameters: keys, workers, and what every part of the servers carries.

Rates are whole bytes per second in each direction unless it says otherwise, times ns, so that all arithmetic is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from treadle.planner.documents.scalars import Count, Document, Name, Positive, Record
from treadle.planner.documents.server_parts import Carrier
from treadle.planner.passes.server.keys import ServerKey, key_problems
from treadle.planner.passes.server.price_list import ServerPrices

VERSION = 1
Mode = Literal["cc", "cs", "ncc", "ncs"]
"""On a worker's machine or not (c, nc), one server or shards on several (c, s)."""
OptimizerName = Literal["mean", "sgd", "nesterov", "adam", "lamb"]
OPTIMIZER_NUMBERS: dict[OptimizerName, int] = {"mean": 0, "sgd": 1, "nesterov": 2, "adam": 3, "lamb": 4}
"""As compiled texts know them."""
SETTINGS_NUMBERS = 16
"""How many numbers a group of an optimizer's settings has there."""
STATES: dict[OptimizerName, int] = {"mean": 0, "sgd": 1, "nesterov": 1, "adam": 2, "lamb": 2}
"""float32 values that an optimizer keeps for each element, beyond the weight; `mean` gives back the mean gradient."""
Aggregator = Literal["cached", "bypass"]
Engine = Literal["tall", "wide"]
MOST_CHUNKS = 1 << 20
MOST_WORKERS = 4096
LEAST_CHUNK, MOST_CHUNK = 64, 1 << 30


class MachineInterface(Record, frozen=True, kw_only=True):
    name: Name
    domain: Count
    rate: Positive
    slot_rate: Positive | None = None


class CoreWork(Record, frozen=True, kw_only=True):
    """ns per MiB on a core, and per message of a chunk."""

    receive_ns_per_MB: Count = 0
    add_ns_per_MB: Count = 0
    optimize_ns_per_MB: Count = 0
    send_ns_per_MB: Count = 0
    message_ns: Count = 0
    worker_ns_per_MB: Count = 0
    """On a core of a worker."""


class ServerMachine(Record, frozen=True, kw_only=True):
    """Every server is one. `domains[d]` are the cores of domain d."""

    name: Name
    domains: tuple[Positive, ...]
    interfaces: tuple[MachineInterface, ...]
    cores_per_interface: Positive = 1
    """Each with a connection of its own to every worker, on the interface's domain."""
    memory_bytes: Positive | None = None
    memory_rate: Positive | None = None
    """Reads and writes added."""
    bridge_rate: Positive | None = None
    """Both directions added."""
    between_rate: Positive | None = None
    """Between domains, both directions added."""
    cached_extra_ppm: Count = 170_000
    work: CoreWork = CoreWork()


class ServerProblem(Document, frozen=True, kw_only=True, tag_field="kind", tag="server-problem"):
    """`workers` machines train the same model; worker w is in rack w * racks // workers."""

    version: Positive
    name: Name
    keys: tuple[ServerKey, ...]
    compute_ns: Count = 0
    workers: Positive
    worker_rate: Positive | None = None
    """What a link of a worker carries; None where workers share the server's host."""
    mode: Mode
    servers: Positive = 1
    """Shards in `cs` (one on each worker) and `ncs`; one in each rack otherwise."""
    machine: ServerMachine
    carrier: Carrier
    optimizer: OptimizerName
    synchronous: bool = True
    arrival_order: bool = False
    """Gradients are added up as they arrive, else in the order of workers, so that sums are the same in every run."""
    latency_ns: Count = 0
    """What one message takes beyond its bytes, until its receiver is awake."""
    racks: Positive = 1
    core_rate: Positive | None = None
    """What the link of a rack to the others carries."""
    shared_cores: Positive | None = None
    """Cores that servers and workers share where all of them run on one machine, as in a lab."""
    prices: ServerPrices | None = None

    @property
    def bytes(self) -> int:
        """The whole model as it travels."""
        return sum(key.bytes for key in self.keys)

    def problems(self) -> Iterator[tuple[str, str, str]]:
        yield from key_problems(self.keys)
        if self.workers > MOST_WORKERS:
            yield "$.workers", str(self.workers), f"at most {MOST_WORKERS}"
        machine = self.machine
        if not machine.domains:
            yield "$.machine.domains", "none", "at least one domain"
        if not machine.interfaces:
            yield "$.machine.interfaces", "none", "at least one interface"
        needed = [0] * len(machine.domains)
        seen: set[str] = set()
        for place, interface in enumerate(machine.interfaces):
            path = f"$.machine.interfaces[{place}]"
            if interface.name in seen:
                yield f"{path}.name", f"second {interface.name!r}", "names that occur once"
            seen.add(interface.name)
            if interface.domain >= len(machine.domains):
                yield f"{path}.domain", str(interface.domain), f"a domain below {len(machine.domains)}"
            else:
                needed[interface.domain] += machine.cores_per_interface
        for domain, (cores, need) in enumerate(zip(machine.domains, needed, strict=True)):
            if need > cores:
                yield f"$.machine.domains[{domain}]", f"{cores} cores", f"at least {need}, for its interfaces"
        if self.servers > MOST_WORKERS:
            yield "$.servers", str(self.servers), f"at most {MOST_WORKERS}"
        shards = {"cs": self.workers, "ncs": self.servers}.get(self.mode, self.racks)
        if self.servers != shards:
            yield "$.servers", str(self.servers), f"{shards} in mode {self.mode}"
        if self.racks > 1:
            if self.mode != "ncc":
                yield "$.racks", f"{self.racks} racks in mode {self.mode}", "mode ncc, a server in each rack"
            if self.workers % self.racks:
                yield "$.workers", f"{self.workers} in {self.racks} racks", "as many in each rack"
            if self.core_rate is None:
                yield "$.core_rate", "nothing", "the rate of a rack's link to the others"
        if self.optimizer == "lamb" and self.servers > 1:
            yield "$.optimizer", "lamb", "one server, since its norms are those of whole keys"
