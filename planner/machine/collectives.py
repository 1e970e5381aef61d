"""What one collective takes on a machine, by algorithm, protocol, channels and chunk size (CoCoNet, section 5.1).

    time = latency of the hops + max(links inside a node, links between nodes, what a threadblock has to do)

A channel is a copy of the algorithm on a threadblock of its own; channels divide the message and NICs among them. The
message goes in rounds: in each of them every channel moves a chunk for every rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log2
from typing import Literal

from treadle.planner.errors import InputError
from treadle.planner.machine.rates import Machine, Protocol

Algorithm = Literal["ring", "all-pairs", "hierarchical", "tree"]
PASSES = {"AllReduce": 2, "ReduceScatter": 1, "AllGather": 1, "AllToAll": 1, "Reduce": 1, "Broadcast": 1}
"""How many times (n-1)/n of its tensor a collective sends from each rank, by the ring algorithm."""
LL_CHUNK = 32768
"""At most, of LL: the slots of NCCL hold no more."""


@dataclass(frozen=True)
class Movement:
    """`payload` is bytes of the whole tensor; of AllToAll and Send, of what one rank holds."""

    op: str
    payload: float
    offset: int = 0
    """The group that it runs in; a Send starts there."""


@dataclass(frozen=True)
class Config:
    """The configuration of a collective, or of all collectives of a kernel; `channels` are threadblocks."""

    algorithm: Algorithm
    protocol: str
    channels: int
    chunk_bytes: int


@dataclass(frozen=True)
class Tuning:
    """What the inner search tries for a kernel with a collective; more channels than the machine has are left out."""

    algorithms: tuple[Algorithm, ...] = ("ring", "all-pairs", "hierarchical", "tree")
    protocols: tuple[str, ...] = ("LL", "LL128", "Simple")
    channels: tuple[int, ...] = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
    chunks: tuple[int, ...] = (32768, 131072, 524288)


DEFAULT = Tuning()


@dataclass(frozen=True)
class Timing:
    """us; `node` and `network` are the times on links inside a node and between nodes, `channel` that of a channel."""

    latency: float
    channel: float
    """To send its share of the bytes and, beyond the first round, the fixed cost of every step."""
    node: float
    network: float
    rounds: int
    serial: bool = False
    """Whether links of a node and links between nodes take turns within a round."""

    @property
    def body(self) -> float:
        """Everything but latency."""
        longer, shorter = max(self.node, self.network), min(self.node, self.network)
        return max(self.channel, longer + (shorter / self.rounds if self.serial else 0.0))

    @property
    def total(self) -> float:
        return self.latency + self.body


@dataclass(frozen=True)
class Placement:
    """A group of `ranks` on `nodes` nodes, `per_node` of them on each; `groups` in all."""

    ranks: int
    groups: int
    nodes: int
    per_node: int


def placement(machine: Machine, ranks: int, groups: int) -> Placement:
    """Groups of consecutive ranks fill node after node. Raises InputError when the machine has too few ranks."""
    machine.nodes_of(ranks * groups)
    return Placement(ranks, groups, machine.nodes_of(ranks), min(ranks, machine.per_node))


@lru_cache(maxsize=65536)
def timing(
    movement: Movement, place: Placement, machine: Machine, config: Config, slower: float = 1.0
) -> Timing | None:
    """None where the algorithm does not do it there. `slower` says by how much threadblocks are."""
    protocol = next(x for x in machine.protocols if x.name == config.protocol)
    together = config.channels * config.chunk_bytes * (1 if movement.op == "Send" else place.ranks)
    rounds = max(1, ceil(movement.payload / together))
    shape = _shape(movement, place, machine, config.algorithm)
    if shape is None:
        return None
    node_rate = machine.node_rate * protocol.wire_share
    network_rate = min(config.channels, machine.nics, place.per_node) * machine.nic_rate * protocol.wire_share
    if (shape.node_bytes and not node_rate) or (shape.network_bytes and not network_rate):
        return None
    sending = shape.rank_bytes / (config.channels * protocol.channel_rate)
    return Timing(
        latency=slower * _latency(shape, protocol, machine),
        channel=slower * (sending + (rounds - 1) * shape.steps * machine.step_us),
        node=shape.node_bytes / node_rate if shape.node_bytes else 0.0,
        network=shape.network_bytes / network_rate if shape.network_bytes else 0.0,
        rounds=rounds,
        serial=config.algorithm == "hierarchical",
    )


@dataclass(frozen=True)
class _Shape:
    """Hops one after the other, steps of a threadblock in a round, bytes out of the busiest rank and node.

    `rank_bytes` leave a rank in each direction.
    """

    node_hops: int
    network_hops: int
    steps: int
    node_bytes: float
    network_bytes: float
    rank_bytes: float


def _latency(shape: _Shape, protocol: Protocol, machine: Machine) -> float:
    extra = max(0, shape.steps - shape.node_hops - shape.network_hops) * machine.step_us
    return shape.node_hops * protocol.node_us + shape.network_hops * protocol.network_us + extra


def _shape(movement: Movement, place: Placement, machine: Machine, algorithm: Algorithm) -> _Shape | None:
    n, k, m, payload = place.ranks, place.nodes, place.per_node, movement.payload
    if movement.op == "Send":
        if n * place.groups <= machine.per_node:
            return _Shape(1, 0, 1, payload, 0.0, payload)
        return _Shape(0, 1, 1, 0.0, m * payload, payload)
    if n == 1:
        return _Shape(0, 0, 0, 0.0, 0.0, 0.0)
    if movement.op == "AllToAll":
        inside, outside = payload * (m - 1) / n, payload * m * (n - m) / n
        return _Shape(int(k == 1), int(k > 1), n - 1, inside, outside, inside + outside / m)
    crossings = 0 if k == 1 else min(k, n - 1)
    if movement.op in ("Reduce", "Broadcast"):
        if algorithm == "ring":
            inside = payload if m > 1 else 0.0
            return _Shape(n - 1 - crossings, crossings, n - 1, inside, payload if k > 1 else 0.0, payload)
        if algorithm == "tree":
            return _tree(1, payload, k, m)
        return None
    passes = PASSES[movement.op]
    share = passes * payload * (n - 1) / n
    if algorithm == "ring":
        between = share if k > 1 else 0.0
        inside = share if m > 1 else 0.0
        return _Shape(passes * (n - 1 - crossings), passes * crossings, passes * (n - 1), inside, between, share)
    if algorithm == "all-pairs" and k == 1:
        return _Shape(passes, 0, passes * (n - 1), share, 0.0, share)
    if algorithm == "hierarchical" and k > 1 and m > 1 and n == k * m:
        hops = passes * (m - 1), passes * (k - 1)
        inside, between = passes * payload * (m - 1) / m, passes * payload * (k - 1) / k
        return _Shape(*hops, sum(hops), inside, between, inside + between / m)
    if algorithm == "tree" and movement.op == "AllReduce":
        return _tree(2, payload, k, m)
    return None


def _tree(passes: int, payload: float, k: int, m: int) -> _Shape:
    """A chain in each node under a binary tree of nodes, as NCCL's; two of them share the message."""
    hops = passes * (m - 1), passes * ceil(log2(k))
    whole = passes * payload
    return _Shape(*hops, sum(hops), whole if m > 1 else 0.0, whole if k > 1 else 0.0, whole)


@lru_cache(maxsize=4096)
def configs(
    machine: Machine, tuning: Tuning, place: Placement, ops: tuple[str, ...], alone: bool
) -> tuple[Config, ...]:
    """Configurations for these operations in one kernel that tuning and machine allow, the fewest channels first.

    `alone`: nothing overlaps them, so that no chunk smaller than the largest helps, but between links that take turns.
    """
    channels = [count for count in tuning.channels if count <= machine.channels] or [1]
    protocols = [name for name in tuning.protocols if name in {each.name for each in machine.protocols}]
    shapes = {a: [_shape(Movement(op, 1.0), place, machine, a) for op in ops] for a in tuning.algorithms}
    found: dict[Config, None] = {}
    for count in channels:
        for algorithm in tuning.algorithms:
            if all(shape is not None for shape in shapes[algorithm]):
                single = alone and algorithm != "hierarchical"
                for protocol in protocols:
                    for chunk in tuning.chunks[-1:] if single else tuning.chunks:
                        size = min(chunk, LL_CHUNK) if protocol == "LL" else chunk
                        found[Config(algorithm, protocol, count, size)] = None
    return tuple(found)


def alone(movement: Movement, place: Placement, machine: Machine, tuning: Tuning = DEFAULT) -> float:
    """Time in us of one collective in isolation, launch included, in the best configuration."""
    launch, timed = fastest(movement, place, machine, tuning)
    return launch + timed.total


@lru_cache(maxsize=65536)
def fastest(movement: Movement, place: Placement, machine: Machine, tuning: Tuning = DEFAULT) -> tuple[float, Timing]:
    """Time in us of the launch of one collective in isolation, and of the rest, in the fastest configuration.

    Raises InputError where the machine has no links for it.
    """
    best: tuple[float, Timing] | None = None
    for config in configs(machine, tuning, place, (movement.op,), True):
        timed = timing(movement, place, machine, config)
        launch = machine.collective_launch_us + machine.base_us(config.protocol)
        if timed is not None and (best is None or launch + timed.total < best[0] + best[1].total):
            best = launch, timed
    if best is None:
        raise InputError(f"{machine.name} has no links for {movement.op} of {place.ranks} ranks")
    return best
